"""The demux pass of the packet index: read each packet once and record its times, flags and header facts."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from telecine.bitstream import (
    Leading,
    PacketInfo,
    PictureFormat,
    RandomAccess,
    scanner_for,
)
from telecine.bitstream.fields import CODECS_WITH_FIELDS, has_two_fields, picture_colors
from telecine.container.demuxer import Demuxer
from telecine.container.timestamps import NO_TIME
from telecine.deadline import Deadline
from telecine.errors import LimitError
from telecine.index.scan_lock import SCAN_LOCK
from telecine.limits import Limits

if TYPE_CHECKING:
    from av.packet import Packet

__all__ = ["MAX_KEPT_BYTES", "PACKET_BYTES", "PacketScan", "scan_packets"]

_Scalar = TypeVar("_Scalar", bound=np.generic)
MAX_KEPT_BYTES = 32 << 20
"""Packets are kept for the decode if all of them fit in this; a longer video is read a second time instead."""
PACKET_BYTES = 1024
"""Memory of a kept packet besides its data."""

_CODECS_WITH_HIDDEN_FRAMES = ("av1", "vp8", "vp9")

# Facts of packets without a scanner; two shared objects, since there may be very many packets.
# In codecs with references the container's key frame flag proves nothing: only the first packet is independent.
_INDEPENDENT = PacketInfo(random_access=RandomAccess.CLOSED, leading=Leading.DECODABLE)
_DEPENDENT = PacketInfo(random_access=RandomAccess.NONE, leading=Leading.DECODABLE)


class PacketScan:
    """The packets read so far, in decode order: two hours of video are 200 000 of them.

    With ``keep``, the packets themselves are kept as long as they are small enough.
    """

    def __init__(self, codec: str, extradata: bytes, keep: bool) -> None:
        self.codec = codec
        self.pts, self.dts, self.duration, self.size = array("q"), array("q"), array("q"), array("q")
        self.position = array("q")
        self.key, self.discard, self.corrupt = bytearray(), bytearray(), bytearray()
        self.facts: list[PacketInfo] = []
        """Header facts of each packet. Scanners return the same few objects, so that this is a list of references."""
        self.picture: PictureFormat | None = None
        self.packets: list[Any] | None = [] if keep else None
        self.extradata = extradata
        self.new_extradata: dict[int, Any] = {}
        self.palettes: dict[int, Any] = {}
        self.damage: str | None = None
        self.has_start_codes = self.crops_left = self.interlaced = False
        self.has_one_frame_per_packet = self.has_changed_parameter_sets = False
        self._kept_bytes = 0

    def add(self, packet: Packet[Any], is_key: bool, facts: PacketInfo) -> None:
        """Record the next packet."""
        pts, dts, size = packet.pts, packet.dts, packet.size
        self.pts.append(NO_TIME if pts is None else pts)
        self.dts.append(NO_TIME if dts is None else dts)
        self.duration.append(packet.duration or 0)
        self.size.append(size)
        self.position.append(-1 if packet.pos is None else packet.pos)
        self.key.append(is_key)
        self.discard.append(packet.is_discard)
        self.corrupt.append(packet.is_corrupt)
        self.facts.append(facts)
        if self.packets is not None:
            self._kept_bytes += size + PACKET_BYTES
            if self._kept_bytes > MAX_KEPT_BYTES:
                self.packets = None
            else:
                self.packets.append(packet)

    def update_extradata(self, packet: Packet[Any]) -> bool:
        """Record new extradata attached to the next packet. Returns True if it changes where decoding can start.

        After a first change every one counts, even if the same extradata comes again: decoding can start there.
        """
        found = packet.get_sidedata("new_extradata")
        if not self.new_extradata and bytes(found) == self.extradata:
            return False
        self.extradata = bytes(found)
        self.new_extradata[len(self.pts)] = found
        return True

    @property
    def max_temporal_id(self) -> int:
        """Highest temporal id of all packets."""
        return int(self.fact("temporal_id", np.int8).max())

    @property
    def reason(self) -> str:
        """Reason of the damage for the end of an error message; empty if there is none."""
        return f": {self.damage}" if self.damage else ""

    def fact(self, name: str, dtype: type[_Scalar]) -> npt.NDArray[_Scalar]:
        """Return a header fact of all packets."""
        return np.fromiter(map(attrgetter(name), self.facts), dtype, len(self.facts))


def scan_packets(
    demuxer: Demuxer, packets: Iterable[Any], limits: Limits, deadline: Deadline, with_order: bool
) -> PacketScan:
    """Read packets of a stream, from the first one on, to the end and record what each is.

    With ``with_order`` the scanner also reads the output order, which takes longer. Raises LimitError if there are more
    than ``limits.max_packets``.
    """
    import av

    context = demuxer.stream.codec_context
    codec, extradata = context.codec.canonical_name, bytes(context.extradata or b"")
    scanner = scanner_for(codec, extradata)
    if scanner is not None:
        scanner.has_whole_packets = demuxer.stores_whole_packets
    is_updatable = scanner is not None and scanner.accepts_new_extradata
    intra_only = scanner is None and (bool(context.codec.intra_only) or codec == "png")
    # packets of a larger source would not fit, except for its audio; filling memory in vain takes time
    scan = PacketScan(codec, extradata, keep=demuxer.size <= MAX_KEPT_BYTES)
    has_palette, max_packets = context.pix_fmt == "pal8", limits.max_packets
    try:
        with SCAN_LOCK.acquire(deadline, "waiting to read the packets") as ticket:
            for packet in packets:
                if len(scan.pts) >= max_packets:
                    raise LimitError(f"{demuxer.name}: more than {max_packets} packets (limits.max_packets)")
                if len(scan.pts) % 16 == 0:  # reading checks the deadline too, but kept packets are not read
                    ticket.report_progress()
                    deadline.check("reading the packets")
                updated = packet.has_sidedata("new_extradata") and scan.update_extradata(packet)
                if updated and scanner is not None and is_updatable:
                    scanner.update_extradata(scan.extradata)
                is_key = packet.is_keyframe
                if scanner is not None:
                    facts = scanner.scan(memoryview(packet), is_key, with_order)
                else:
                    facts = _INDEPENDENT if intra_only or not scan.pts else _DEPENDENT
                    if not scan.pts and codec in CODECS_WITH_FIELDS:
                        scan.interlaced = has_two_fields(codec, memoryview(packet), context.height)
                        scan.picture = picture_colors(codec, memoryview(packet))
                if packet.is_corrupt and codec in _CODECS_WITH_HIDDEN_FRAMES:
                    facts = facts._replace(is_damaged=True, shown=True)  # the list of its frames is at its end
                if scan.new_extradata and not updated and not is_updatable:
                    # a decoder that starts here has the stream's extradata, not that of an earlier packet
                    facts = facts._replace(random_access=RandomAccess.NONE)
                if has_palette and packet.has_sidedata("palette"):
                    scan.palettes[len(scan.pts)] = packet.get_sidedata("palette")
                scan.add(packet, is_key, facts)
    except av.error.FFmpegError as error:
        scan.damage = f"the file is damaged or cut off ({error.strerror})"
    deadline.check("reading the packets")
    if scan.pts and demuxer.ends_inside_picture:
        scan.corrupt[-1] = True
        scan.damage = scan.damage or "the file is cut off inside its last picture"
    if scanner is not None:
        scan.picture, scan.has_start_codes = scanner.picture, scanner.has_start_codes
        scan.crops_left, scan.interlaced = scanner.crops_left, scan.interlaced or scanner.interlaced
        scan.has_changed_parameter_sets = scanner.has_changed_parameter_sets
    scan.has_one_frame_per_packet = intra_only or (scanner is not None and scanner.has_one_frame_per_packet)
    return scan
