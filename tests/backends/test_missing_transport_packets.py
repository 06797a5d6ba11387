"""One transport packet is missing: every backend returns right frames and names the others as lost."""

from __future__ import annotations

import numpy as np
import pytest

import telecine
from support.clips import CLIPS, read_number
from telecine.backends.registry import get_backend

TS_PACKET = 188
CLIPS_IN_TS = sorted(
    name for name, clip in CLIPS.items() if name.endswith(".ts") and clip.codec in ("h264", "hevc", "mpeg2video")
)


def video_packets(data: bytes) -> list[tuple[int, bool]]:
    """Return (offset, True if a picture starts) of the transport packets of the stream with the most of them."""
    headers = [(at, int.from_bytes(data[at + 1 : at + 3], "big")) for at in range(0, len(data) - 187, TS_PACKET)]
    pids = [flags & 0x1FFF for _, flags in headers]
    video = max(set(pids), key=pids.count)
    return [(at, bool(flags & 0x4000)) for at, flags in headers if flags & 0x1FFF == video]


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        (name, backend)
        for name in CLIPS_IN_TS
        for backend in ("pyav", "opencv")
        if backend == "pyav" or "interlaced" not in CLIPS[name].tags  # OpenCV refuses these
    ],
)
@pytest.mark.parametrize("picture", [1, 5])
def test_a_missing_transport_packet_exchanges_no_frames(picture: int, name: str, backend: str) -> None:
    """The last transport packet of a picture is missing, or the first if there is no other."""
    if not (status := get_backend(backend).status()).usable:
        pytest.skip(f"{backend}: {status.reason}")
    data = CLIPS[name].bytes()
    packets = video_packets(data)
    starts = [i for i, (_, is_start) in enumerate(packets) if is_start]
    at = packets[starts[picture + 1] - 1][0]
    cut = data[:at] + data[at + TS_PACKET :]
    whole, frames = telecine.load(data), telecine.load(cut, backend=backend)
    assert frames.report.lost and len(frames) >= 10
    # a picture of a single transport packet is gone; no later frame has its time
    shown = {read_number(frame): time for frame, time in zip(frames.data, frames.timestamps, strict=True)}
    times = dict(zip(map(read_number, whole.data), whole.timestamps, strict=True))
    first = whole.info.start_time - frames.info.start_time
    assert len(shown) == len(frames)
    np.testing.assert_allclose([shown[n] - first for n in shown], [times[n] for n in shown], atol=0.02)
