"""Telecine inside vLLM, as a plugin that vLLM finds by its entry point. docs/vllm.md is the manual.

- :mod:`.plugin` registers the other modules, each by itself.
- :mod:`.codec` decodes the frames that vLLM's sampling classes choose.
- :mod:`.patched_loaders` makes the two classes use it that always take OpenCV.
- :mod:`.loader` chooses frames by telecine's sampling options.
- :mod:`.connector` maps local files and fetches URLs.
- :mod:`.options`, :mod:`.decode_pool` and :mod:`.gpu_memory_guard` bound cores and memory.
"""

from __future__ import annotations

from telecine.integrations.vllm.plugin import register, state

__all__ = ["register", "state"]
