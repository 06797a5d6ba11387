"""Integrations with inference engines. Each module imports its engine only when it is called."""

from __future__ import annotations

__all__: list[str] = []
