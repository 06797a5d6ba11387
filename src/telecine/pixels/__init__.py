"""Conversion of decoded pictures: geometry, colour and resize, by one rule for every backend."""

__all__: list[str] = []
