"""Backends: everything that executes a decode plan."""

__all__: list[str] = []
