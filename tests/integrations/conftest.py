"""The engines' tests run in environments that have the engines (``scripts/test vllm``), and are skipped elsewhere."""

from __future__ import annotations

import importlib.util

if importlib.util.find_spec("vllm") is not None:
    from support import torchvision_on_cpu

    torchvision_on_cpu.prepare()
