"""Choosing the packets to decode for the wanted frames."""

__all__: list[str] = []
