"""Reading the planned packets: from those that the index kept, or from the file again."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from telecine.bitstream.nal import has_start_codes, nal_length_size, prepend_parameter_sets, replace_start_codes
from telecine.container.demuxer import Demuxer
from telecine.container.timestamps import MPEG_CLOCK_TICKS, NO_TIME
from telecine.errors import SourceError, UnsupportedVideoError
from telecine.index.packet_index import PacketIndex
from telecine.index.table_index import read_packets

if TYPE_CHECKING:
    from av.packet import Packet

__all__ = ["PacketReader", "with_data"]

_MAX_PACKETS_READ_OVER = 256
"""Up to this many unwanted packets are read and dropped; further ones are skipped by a seek."""


@dataclass(frozen=True, eq=False)
class PacketReader:
    """Reads packets of an indexed video by their ordinals. Not thread-safe unless the index kept the packets."""

    demuxer: Demuxer
    index: PacketIndex

    def read(self, ordinals: npt.NDArray[np.int64]) -> Iterator[tuple[int, Packet[Any]]]:
        """Yield (ordinal, packet) for ascending ordinals.

        Packets that the index kept are taken from it, and those whose position it has are read there. Otherwise the
        file is read again, after a seek to the first of them. Packets found there are compared with the index; if they
        differ, the file is read from its start.
        """
        index = self.index
        palettes = list(index.palettes)
        length_size = nal_length_size(index.codec, self.demuxer.extradata)
        for ordinal, packet in self._read(ordinals):
            # a demuxer gives these only once, not again after a seek
            if ordinal in index.new_extradata and not packet.has_sidedata("new_extradata"):
                packet.set_sidedata(index.new_extradata[ordinal])
            palette = bisect_right(palettes, ordinal)
            if palette and not packet.has_sidedata("palette"):
                packet.set_sidedata(index.palettes[palettes[palette - 1]])
            if length_size and has_start_codes(index.codec, memoryview(packet), length_size):
                packet = with_data(packet, replace_start_codes(memoryview(packet), length_size))
            yield ordinal, packet

    def read_in_band(self, ordinals: npt.NDArray[np.int64]) -> Iterator[tuple[int, Packet[Any]]]:
        """Yield as :meth:`read`, with out-of-band parameter sets prepended, for decoders that accept extradata once."""
        import av

        for ordinal, packet in self.read(ordinals):
            if ordinal in self.index.new_extradata:
                extradata = bytes(self.index.new_extradata[ordinal])
                data = prepend_parameter_sets(self.index.codec, self.demuxer.extradata, extradata, bytes(packet))
                if data is None:
                    raise UnsupportedVideoError(
                        f"{self.demuxer.name}: its container changes the parameter sets in mid-stream, in a way that "
                        "cannot be written into the packets; use backend='pyav'"
                    )
                packet = av.Packet(data)  # without the side data
            yield ordinal, packet

    def _read(self, ordinals: npt.NDArray[np.int64]) -> Iterator[tuple[int, Packet[Any]]]:
        if self.index.offset is not None:
            yield from read_packets(self.demuxer, self.index, ordinals)
            return
        if self.index.packets is not None:
            for ordinal in ordinals.tolist():
                yield ordinal, self.index.packets[ordinal]
            return
        demuxer, wanted, done = self.demuxer, ordinals.tolist(), 0
        while done < len(wanted):
            ahead = wanted[done] - demuxer.position
            if ahead < 0 or (demuxer.can_seek and ahead >= _MAX_PACKETS_READ_OVER):
                self._seek(wanted[done])
            for packet in demuxer.packets():
                ordinal = demuxer.position - 1
                if ordinal != wanted[done]:
                    continue
                if not self._is_same(ordinal, packet):
                    break
                yield ordinal, packet
                done += 1
                if done == len(wanted):
                    demuxer.check_reading()
                    return
            if not demuxer.can_seek:
                raise SourceError(
                    f"{demuxer.name}: reading it again gave other packets; was the file changed meanwhile?"
                )
            # after a seek, this demuxer gives other times or ends early; from the start it reads the same packets
            demuxer.can_seek = False
            demuxer.rewind()

    def _seek(self, target: int) -> None:
        """Move the demuxer to packet ``target`` or one before it, to the start of the file if seeking fails."""
        import av

        index, demuxer = self.index, self.demuxer
        time = int(index.dts[target] if index.dts[target] != NO_TIME else index.pts[target])
        if demuxer.can_seek and time != NO_TIME:
            with suppress(av.error.FFmpegError):
                demuxer.seek(time)
                packet = next(demuxer.packets(), None)
                if packet is not None and (found := self._find(packet, target)) is not None:
                    demuxer.seek(time, found)  # the packet that was read cannot be put back
                    return
        demuxer.can_seek = False
        demuxer.rewind()

    def _is_same(self, ordinal: int, packet: Packet[Any]) -> bool:
        known, pts = int(self.index.pts[ordinal]), NO_TIME if packet.pts is None else packet.pts
        # times of the index are unwrapped: they may differ by a multiple of the clock's range
        same = pts == known or (NO_TIME not in (pts, known) and (pts - known) % MPEG_CLOCK_TICKS == 0)
        return bool(packet.size == self.index.size[ordinal] and same)

    def _find(self, packet: Packet[Any], target: int) -> int | None:
        """Return the ordinal of a packet at or before ``target``; None if it is not certain."""
        if packet.pts is None:
            return None
        pts, size = self.index.pts[: target + 1], self.index.size[: target + 1]
        found = np.flatnonzero((pts == packet.pts) & (size == packet.size))
        return int(found[0]) if len(found) == 1 else None


def with_data(packet: Packet[Any], data: bytes) -> Packet[Any]:
    """Return a packet with other data, and the times, flags and side data of one."""
    import av

    changed = av.Packet(data)
    for attribute in ("pts", "dts", "duration", "time_base", "is_keyframe", "is_corrupt"):
        setattr(changed, attribute, getattr(packet, attribute))
    for name in ("new_extradata", "palette"):
        if packet.has_sidedata(name):
            changed.set_sidedata(packet.get_sidedata(name))
    return changed
