"""FFmpeg demuxers over the bytes of a source, and the container facts that FFmpeg does not report."""

__all__: list[str] = []
