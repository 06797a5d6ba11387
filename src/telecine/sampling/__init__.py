"""Choosing frame indices from a timeline."""

__all__: list[str] = []
