"""Telecine inside vLLM, as a plugin that vLLM finds by itself. docs/vllm.md is the manual.

- :mod:`.plugin` enters everything below into vLLM's registries, each part by itself.
- :mod:`.codec` decodes what vLLM's own sampling classes choose; :mod:`.classes` reaches the two that will not be told.
- :mod:`.loader` chooses frames by telecine's sampling.
- :mod:`.connector` maps files and fetches URLs.
- :mod:`.options`, :mod:`.share` and :mod:`.guard` say what all of this may cost.
"""

from __future__ import annotations

from telecine.integrations.vllm.plugin import register, state

__all__ = ["register", "state"]
