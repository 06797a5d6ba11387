"""Planned packets in a small container in memory, for libraries that read only files."""

__all__: list[str] = []
