"""Reading planned packets, from the index or from the file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from support.clips import CLIPS
from telecine.container.demuxer import Demuxer
from telecine.deadline import Deadline
from telecine.errors import SourceError
from telecine.index.packet_index import read_index
from telecine.limits import Limits
from telecine.plan import packet_reader
from telecine.plan.packet_reader import PacketReader
from telecine.source.source import open_source


@contextmanager
def open_reader(name: str) -> Iterator[PacketReader]:
    deadline = Deadline()
    with open_source(CLIPS[name].path(), Limits(), deadline) as source, Demuxer(source, deadline) as demuxer:
        yield PacketReader(demuxer, read_index(demuxer, Limits(), deadline))


def read(reader: PacketReader, ordinals: list[int]) -> dict[int, bytes]:
    return {ordinal: bytes(packet) for ordinal, packet in reader.read(np.array(ordinals))}


@pytest.mark.parametrize("name", ["base.mp4", "h264.mkv", "h264.ts", "hevc_raw.hevc", "mpeg4.avi", "h264_pyramid.mp4"])
def test_packets_read_from_the_file_are_those_that_the_index_kept(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packet_reader, "_MAX_PACKETS_READ_OVER", 2)
    with open_reader(name) as kept:
        again = PacketReader(kept.demuxer, replace(kept.index, packets=None))
        last = kept.index.num_packets - 1
        for ordinals in ([0, 1, 30, last], [last], [17, 18], [2, 25]):
            assert read(again, ordinals) == read(kept, ordinals)
            assert again.demuxer.position == ordinals[-1] + 1


def test_a_file_with_other_packets_than_its_index_is_refused() -> None:
    with open_reader("base.mp4") as reader:
        changed = replace(reader.index, packets=None, size=reader.index.size + 1)
        with pytest.raises(SourceError, match="was the file changed"):
            read(PacketReader(reader.demuxer, changed), [5])


def test_the_file_is_read_from_its_start_if_a_seek_leads_to_an_unknown_packet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PacketReader, "_find", lambda *_: None)
    with open_reader("h264_keyint4.mp4") as reader:
        again = PacketReader(reader.demuxer, replace(reader.index, packets=None))
        assert read(again, [3, 40]) == read(reader, [3, 40])
        assert not reader.demuxer.can_seek
