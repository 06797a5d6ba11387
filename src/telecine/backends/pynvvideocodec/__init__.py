"""The PyNvVideoCodec backend."""

__all__: list[str] = []
