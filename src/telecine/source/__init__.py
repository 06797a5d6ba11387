"""Encoded bytes: held in memory, mapped from a file, or fetched over HTTP."""

__all__: list[str] = []
