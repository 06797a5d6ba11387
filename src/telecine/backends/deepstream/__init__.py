"""The DeepStream backend."""

__all__: list[str] = []
