"""Backends execute decode plans. A package that adds one derives from :class:`Backend`; docs/backends.md shows it."""

from telecine.backends.base import Backend, BackendStatus, Decoded, DecodeRequest, MemoryCost
from telecine.validation import Option

__all__ = ["Backend", "BackendStatus", "DecodeRequest", "Decoded", "MemoryCost", "Option"]
