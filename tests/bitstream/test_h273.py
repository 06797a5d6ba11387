"""The code points of ITU-T H.273 have the names that FFmpeg gives them."""

from __future__ import annotations

import pytest
from av import VideoFrame
from av.filter import Graph

from telecine.bitstream.h273 import MATRICES, RANGES, UNSPECIFIED, UNSPECIFIED_RANGE, matrix_code, range_code


def tagged(option: str, name: str) -> VideoFrame:
    """Return a frame to which FFmpeg's filter ``setparams`` has given a tag by its name."""
    graph, frame = Graph(), VideoFrame(16, 16, "yuv420p")
    source = graph.add_buffer(width=16, height=16, format="yuv420p", time_base="1/25")
    graph.link_nodes(source, graph.add("setparams", f"{option}={name}"), graph.add("buffersink")).configure()
    graph.push(frame)
    return graph.pull()


@pytest.mark.parametrize(
    ("option", "attribute", "names"),
    [
        ("colorspace", "colorspace", MATRICES),
        ("range", "color_range", RANGES),
    ],
)
def test_names_are_those_of_ffmpeg(option: str, attribute: str, names: dict[int, str]) -> None:
    assert {code: int(getattr(tagged(option, name), attribute)) for code, name in names.items()} == {
        code: code for code in names
    }


def test_unknown_names_are_unspecified() -> None:
    assert (matrix_code("bt709"), matrix_code("unknown")) == (1, UNSPECIFIED)
    assert (range_code("pc"), range_code("unknown")) == (2, UNSPECIFIED_RANGE)
