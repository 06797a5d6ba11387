"""Functions of the NVDEC engine that other backends do not have: creating decoder sessions early, and counters.

Import it by name, ``from telecine import nvdec``: ``import telecine`` alone does not load it.
"""

from telecine.backends.nvdec.backend import stats, warm_up

__all__ = ["stats", "warm_up"]
