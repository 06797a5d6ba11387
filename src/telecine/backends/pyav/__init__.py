"""The CPU backend: FFmpeg decoders through PyAV."""

__all__: list[str] = []
