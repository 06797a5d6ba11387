"""The NVDEC backend: hardware decoding through the native engine."""

__all__: list[str] = []
