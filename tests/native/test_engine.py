"""The NVDEC engine with a fake driver: frame identity, pixels, damage, sessions."""

from __future__ import annotations

import time

import pytest

from support.fake_driver.double import HANDLES, Double, check_frames, double_fixture, engine_fixture, numbers_at  # noqa: F401, fixtures
from support.fake_driver.stream import BAD, FIELD, IGNORED, INTRA, REFERENCE, SECOND, Coded, Shape, gop
from telecine.pixels.geometry import Geometry


def test_every_frame_of_a_reordered_stream_fills_its_own_row(double: Double) -> None:
    pictures = gop(0, 25)
    wanted = list(range(len(pictures)))
    result, frames = double.decode(pictures, wanted)
    assert result.loss == bytes(25) and result.pictures == 25 and not result.stopped
    check_frames(frames, numbers_at(pictures, wanted), Shape())


def test_output_rows_in_any_order_and_repeated_are_filled(double: Double) -> None:
    pictures = gop(0, 12)
    wanted = [7, 2, 7, 0, 11, 2]
    result, frames = double.decode(pictures, wanted)
    assert result.loss == bytes(6)
    check_frames(frames, numbers_at(pictures, wanted), Shape())
    assert double.nvdec.stats(0)["frames"] >= 4


def test_only_wanted_frames_are_mapped(double: Double) -> None:
    before = double.count("maps")
    double.decode(gop(0, 30), [29])
    assert double.count("maps") == before + 1


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        (Shape(64, 48), None),
        (Shape(64, 48, 63, 47), None),
        (Shape(64, 48, 62, 45), None),
        (Shape(64, 48, depth=10), None),
        (Shape(64, 48, 61, 47, depth=12), None),
        (Shape(64, 48, chroma=3), None),
        (Shape(64, 48, 63, 47, chroma=3, depth=10), None),
        (Shape(192, 112, 191, 108), (36, 64)),
        (Shape(192, 112, 192, 108), (35, 63)),
        (Shape(64, 48), (60, 101)),
        (Shape(64, 48), (20, 64)),
        (Shape(64, 48), (48, 40)),
        (Shape(192, 112, depth=10), (30, 50)),
        (Shape(192, 112, chroma=3), (30, 50)),
    ],
)
@pytest.mark.parametrize("orientation", [(0, False), (1, False), (2, True), (3, True)])
def test_pixels_match_those_of_ffmpegs_filter_graph(
    double: Double, shape: Shape, size: tuple[int, int] | None, orientation: tuple[int, bool]
) -> None:
    width, height = shape.shown
    turned = (height, width) if orientation[0] % 2 == 0 else (width, height)
    geometry = Geometry(height, width, *orientation, *(size or turned))
    pictures = gop(0, 5)
    result, frames = double.decode(pictures, [0, 3], shape=shape, geometry=geometry)
    assert result.loss == bytes(2)
    check_frames(frames, numbers_at(pictures, [0, 3]), shape, geometry)


def test_two_fields_in_one_packet_are_one_frame(double: Double) -> None:
    top = Coded(0, 0, INTRA | REFERENCE | FIELD, (), True)
    bottom = Coded(0, 0, REFERENCE | FIELD | SECOND, (0,))
    after = Coded(1, 1, REFERENCE, (0,))
    result, frames = double.decode([top.packet() + bottom.packet(), after], [0, 1], display_order=[0, 1], flags=[3, 2])
    assert result.loss == bytes(2)
    check_frames(frames, [0, 1], Shape())


def test_a_display_order_that_contradicts_the_bitstream_loses_frames_and_never_exchanges_them(double: Double) -> None:
    pictures = gop(0, 12)
    display_order = [p.order for p in pictures]
    display_order[1], display_order[2] = display_order[2], display_order[1]
    result, frames = double.decode(pictures, list(range(12)), display_order=display_order)
    kept = [i for i in range(12) if result.loss[i] == 0]
    assert {1, 2} <= {i for i in range(12) if result.loss[i] == 3}
    check_frames(frames[kept], numbers_at(pictures, kept), Shape())


def test_damage_spreads_to_dependent_pictures_and_ends_at_a_closed_random_access_point(double: Double) -> None:
    pictures = [*gop(0, 9), *gop(9, 5)]
    pictures[3] = pictures[3].but(kind=pictures[3].kind | BAD)  # a reference in the middle of the first group
    result, frames = double.decode(pictures, list(range(len(pictures))))
    assert [i for i, loss in enumerate(result.loss) if loss] == [3, 4, 5, 6, 7, 8]
    assert set(result.loss) == {0, 2}
    check_frames(frames[[0, 1, 2, *range(9, 14)]], [0, 2, 1, *numbers_at(pictures, range(9, 14))], Shape())


def test_damage_of_a_disposable_picture_does_not_spread(double: Double) -> None:
    pictures = gop(0, 9)
    pictures[2] = pictures[2].but(kind=BAD)
    result, _ = double.decode(pictures, list(range(9)))
    assert [i for i, loss in enumerate(result.loss) if loss] == [2]


def test_pictures_after_one_that_the_parser_skips_are_lost(double: Double) -> None:
    pictures = [*gop(0, 9), *gop(9, 3)]
    pictures[3] = pictures[3].but(kind=pictures[3].kind | IGNORED)
    result, _ = double.decode(pictures, list(range(len(pictures))))
    assert [i for i, loss in enumerate(result.loss) if loss] == [3, 4, 5, 6, 7, 8]
    assert result.loss[3] == 1


def test_pictures_that_refer_to_a_picture_that_was_not_fed_are_lost(double: Double) -> None:
    pictures = gop(0, 9)
    del pictures[3]
    result, _ = double.decode(pictures, list(range(8)))
    assert [i for i, loss in enumerate(result.loss) if loss] == [3, 4, 5, 6, 7]


def test_pictures_of_an_earlier_request_do_not_count_as_references(double: Double) -> None:
    double.decode(gop(100, 12), [11])
    orphan = Coded(1, 1, REFERENCE, (50,))
    result, _ = double.decode([gop(0, 1)[0], orphan], [1])
    assert result.loss == b"\x02"


def test_a_truncated_packet_loses_frames_and_gives_no_wrong_frame(double: Double) -> None:
    pictures: list[Coded | bytes] = [*gop(0, 9)]
    assert isinstance(pictures[3], Coded)
    cut = pictures[3].packet()[:-2]
    result, _ = double.decode(
        [*pictures[:3], cut, *pictures[4:]], list(range(9)), display_order=[p.order for p in gop(0, 9)]
    )
    assert all(result.loss[i] for i in range(3, 9)) and not any(result.loss[:3])


def test_a_decode_status_in_progress_is_awaited(double: Double) -> None:
    double.set(in_progress=20)
    result, _ = double.decode(gop(0, 9), list(range(9)))
    assert result.loss == bytes(9)


def test_a_session_is_reused_by_later_requests(double: Double) -> None:
    before = double.nvdec.stats(0)
    for first in (0, 40, 80):
        result, frames = double.decode(gop(first, 9), [8])
        assert result.loss == b"\0"
        check_frames(frames, numbers_at(gop(first, 9), [8]), Shape())
    after = double.nvdec.stats(0)
    assert after["sessions_made"] == before["sessions_made"] + 1
    assert after["sessions_reused"] == before["sessions_reused"] + 2


def test_sizes_of_one_size_class_share_a_session(double: Double) -> None:
    made, before = double.count("decoders_made"), double.nvdec.stats(0)["sessions_reconfigured"]
    for shape in (Shape(64, 48), Shape(96, 64, 96, 54), Shape(96, 64, 96, 52), Shape(64, 48, 62, 46), Shape(64, 48)):
        result, frames = double.decode(gop(0, 5), [0, 4], shape=shape)
        assert result.loss == bytes(2)
        check_frames(frames, numbers_at(gop(0, 5), [0, 4]), shape)
    assert double.count("decoders_made") == made + 1
    assert double.nvdec.stats(0)["sessions_reconfigured"] == before + 2


def test_another_bit_depth_chroma_format_or_size_class_needs_another_session(double: Double) -> None:
    made = double.count("decoders_made")
    for shape in (Shape(), Shape(depth=10), Shape(chroma=3), Shape(1024, 64), Shape()):
        assert double.decode(gop(0, 3), [0], shape=shape)[0].loss == b"\0"
    assert double.count("decoders_made") == made + 4


def test_a_stream_that_needs_more_surfaces_gets_another_session(double: Double) -> None:
    made = double.count("decoders_made")
    for surfaces in (5, 16, 5):
        assert double.decode(gop(0, 9), [8], shape=Shape(surfaces=surfaces))[0].loss == b"\0"
    assert double.count("decoders_made") == made + 2


def test_the_picture_size_may_change_within_a_decode_range(double: Double) -> None:
    small, large = Shape(64, 48), Shape(1024, 48)
    middle = len(large.sps()).to_bytes(4, "big") + large.sps()
    first, second = gop(0, 5), gop(5, 5)
    packets: list[Coded | bytes] = [*first, middle + second[0].packet(), *second[1:]]
    display_order = [p.order for p in [*first, *second]]
    result, frames = double.decode(
        packets, [1, 6], shape=small, display_order=display_order, flags=[3, 2, 0, 2, 0, 2, 2, 0, 2, 0]
    )
    assert result.loss == bytes(2)
    check_frames(frames[:1], [first[1].number], small)
    check_frames(frames[1:], [second[1].number], large, Geometry(48, 64, 0, False, 48, 64))


def test_sessions_are_evicted_by_number_and_by_memory(double: Double) -> None:
    double.nvdec.configure(0, idle_sessions=1)
    double.decode(gop(0, 3), [0])
    double.decode(gop(0, 3), [0], shape=Shape(depth=10))
    assert double.nvdec.stats(0)["sessions_idle"] == 1
    one = double.nvdec.stats(0)["session_bytes"]
    double.nvdec.configure(0, session_bytes=one)
    double.decode(gop(0, 3), [0])
    assert double.nvdec.stats(0)["session_bytes"] <= one
    double.nvdec.configure(0, session_bytes=1000)
    result, _ = double.decode(gop(0, 3), [0], shape=Shape(chroma=3))
    assert result.loss == b"\x04" and result.failure_kind == "memory"


def test_warm_up_creates_sessions_in_advance(double: Double) -> None:
    made = double.count("decoders_made")
    double.nvdec.warm_up(0, "h264", "420", 8, 64, 48, 3)
    assert double.count("decoders_made") == made + 3 and double.nvdec.stats(0)["sessions_idle"] == 3
    double.decode(gop(0, 3), [0])
    assert double.count("decoders_made") == made + 3


def test_handles_do_not_accumulate_over_many_requests(double: Double) -> None:
    double.decode(gop(0, 9), [8])
    while double.count("streams") < double.nvdec.stats(0)["workers"]:  # each worker makes its own as it starts
        time.sleep(0.001)
    before = {name: double.count(name) for name in HANDLES}
    for _ in range(20):
        double.decode(gop(0, 9), [8, 3])
    assert {name: double.count(name) for name in HANDLES} == before


@pytest.mark.parametrize(
    "rest",
    [b"\0\0\0\0", bytes(500), b"\0\0\0\x50\x41", b"\xff" * 20],
    ids=["empty", "zeros", "cut", "noise"],
)
@pytest.mark.parametrize("kind", ["reference", "disposable", "key"])
def test_a_packet_whose_last_units_are_destroyed_loses_its_own_frame(double: Double, rest: bytes, kind: str) -> None:
    """The first unit decodes without an error, so the status of the picture is good."""
    pictures = [*gop(0, 9), *gop(9, 9)]
    damaged = {"reference": 3, "disposable": 4, "key": 9}[kind]
    packets: list[Coded | bytes] = [*pictures]
    packets[damaged] = pictures[damaged].packet() + rest
    flags = [
        (double.nvdec.CLOSED if picture.starts else 0) | (double.nvdec.REQUIRED if picture.kind & REFERENCE else 0)
        for picture in pictures
    ]
    display_order = [picture.order for picture in pictures]
    result, frames = double.decode(packets, list(range(18)), display_order=display_order, flags=flags)
    lost = {"reference": [3, 4, 5, 6, 7, 8], "disposable": [4], "key": list(range(9, 18))}[kind]
    assert [i for i, loss in enumerate(result.loss) if loss] == lost
    kept = [i for i in range(18) if i not in lost]
    check_frames(frames[kept], numbers_at(pictures, kept), Shape())


@pytest.mark.parametrize("zeros", [3, 4, 5, 6, 300])
@pytest.mark.parametrize("before", range(4))
def test_zeros_inside_a_slice_are_damage_and_at_its_end_are_padding(double: Double, zeros: int, before: int) -> None:
    """Whatever the position of the zeros is, and although the decoder reports no error."""
    pictures = gop(0, 3)
    flags = [double.nvdec.REQUIRED | (double.nvdec.CLOSED if picture.starts else 0) for picture in pictures]
    display_order = [picture.order for picture in pictures]
    for end, expected_loss in ((b"\x81", b"\0\2\2"), (b"", bytes(3))):
        nal = pictures[1].nal() + b"\x81" * before + bytes(zeros) + end
        packets = [pictures[0], len(nal).to_bytes(4, "big") + nal, pictures[2]]
        result, _ = double.decode(packets, [0, 1, 2], display_order=display_order, flags=flags)
        assert result.loss == expected_loss


@pytest.mark.parametrize("rest", [b"\0", b"\0\0", b"\0\0\0", b"\xff\xff\xff"])
def test_padding_that_is_shorter_than_a_length_is_no_damage(double: Double, rest: bytes) -> None:
    """FFmpeg decodes such packets."""
    pictures = gop(0, 9)
    flags = [double.nvdec.REQUIRED | (double.nvdec.CLOSED if picture.starts else 0) for picture in pictures]
    packets: list[Coded | bytes] = [picture.packet() + rest for picture in pictures]
    display_order = [picture.order for picture in pictures]
    result, frames = double.decode(packets, list(range(9)), display_order=display_order, flags=flags)
    assert result.loss == bytes(9)
    check_frames(frames, numbers_at(pictures, list(range(9))), Shape())
