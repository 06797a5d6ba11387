"""The packet index of a video: which frames exist and when each is shown, without decoding."""

__all__: list[str] = []
