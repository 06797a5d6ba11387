"""Decoding of a live stream: packets wait until it is known that a wanted frame needs them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from telecine.backends.pyav.hevc_units import HevcUnitFilter
from telecine.bitstream import Leading, PacketInfo, RandomAccess, scanner_for
from telecine.bitstream.av1 import without_unneeded_obus
from telecine.bitstream.h264 import FrameNumGapDetector
from telecine.bitstream.nal import has_zeroed_slice, nal_length_size
from telecine.container.demuxer import new_decoder
from telecine.plan.packet_reader import with_data

if TYPE_CHECKING:
    from av.packet import Packet
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

__all__ = ["LiveDecoder", "Taken"]

_DECODER_OPTIONS = {"hevc": {"err_detect": "crccheck+explode"}, "mjpeg": {"err_detect": "explode"}}
"""As for files, but for ``strict`` of H.264: with it, pictures of many cameras would come out half a second late."""
_MAX_HELD = 600
"""Packets held at most: more are decoded, so that the memory of very long GOPs is bounded."""


class _Held(NamedTuple):
    ordinal: int
    packet: Any
    facts: PacketInfo


class Taken(NamedTuple):
    """The result of :meth:`LiveDecoder.hold`."""

    is_shown: bool
    """True if the packet brings a picture of its own to show."""
    is_usable: bool = False
    """True if its picture can be decoded."""
    is_access_point: bool = False
    """True if decoding can start at it."""


class LiveDecoder:
    """Decodes the wanted frames of one connection. Not thread-safe.

    Packets since the last random access point are held. They are decoded when a frame is wanted, or as soon as one will
    be wanted before the next random access point, as far as the length of the last GOP tells. Else the next random
    access point replaces them. After damage nothing is decoded up to the next random access point.
    """

    def __init__(self, stream: VideoStream, max_pixels: int) -> None:
        self._stream, self._max_pixels = stream, max_pixels
        context: Any = stream.codec_context
        self.codec: str = context.codec.canonical_name
        extradata = bytes(context.extradata or b"")
        self._scanner = scanner_for(self.codec, extradata)
        self._intra_only = bool(context.codec.intra_only)
        self._length_size = nal_length_size(self.codec, extradata)
        self._gaps = FrameNumGapDetector(extradata) if self.codec == "h264" else None
        self._units: HevcUnitFilter | None = None
        self._context = self._new_context()
        self._held: list[_Held] = []
        self._is_synchronized = False
        self._is_next_suspect = False
        self._was_fed = False
        self._max_temporal_id = 0
        self._rap_time: int | None = None
        self._rap_arrival: float | None = None
        self._drops_leading = True
        self.gop_seconds: float | None = None
        """Seconds of arrival between the last two random access points; None before there are two."""
        self.packets_fed = 0
        self.is_damaged = False
        """True if something was damaged since it was last set to False."""

    def _new_context(self) -> Any:
        context: Any = new_decoder(self._stream, self._max_pixels, 1, _DECODER_OPTIONS.get(self.codec, {}))
        if self.codec == "hevc":
            self._units = HevcUnitFilter(bytes(context.extradata or b""))
            context.extradata = self._units.extradata
        return context

    def hold(self, ordinal: int, packet: Packet[Any], time: int, arrival: float) -> Taken:
        """Take the next packet.

        Args:
            ordinal: number of the packet.
            packet: the packet.
            time: stream time, microseconds.
            arrival: monotonic clock, seconds.
        """
        facts = self._scan(packet)
        is_shown = facts.shown and not facts.second_field
        is_access_point = facts.random_access is not RandomAccess.NONE
        if self._is_damaged(packet) and not facts.disposable:
            self.lose_synchronization()
            self.is_damaged = True
            return Taken(is_shown)
        if is_access_point:
            self._begin_gop(facts, time, arrival)
        if not self._is_synchronized:
            return Taken(is_shown)
        is_leading = self._rap_time is not None and time < self._rap_time
        if is_leading and (self._drops_leading or facts.leading in (Leading.SKIPPED, Leading.UNDECODABLE)):
            return Taken(is_shown)
        self._max_temporal_id = max(self._max_temporal_id, facts.temporal_id)
        self._held.append(_Held(ordinal, packet, facts))
        return Taken(is_shown, is_shown and not packet.is_corrupt, is_access_point)

    def _scan(self, packet: Packet[Any]) -> PacketInfo:
        if packet.has_sidedata("new_extradata"):
            extradata = bytes(packet.get_sidedata("new_extradata"))
            if self._scanner is not None and self._scanner.accepts_new_extradata:
                self._scanner.update_extradata(extradata)
            if self._gaps is not None:
                self._gaps.update_extradata(extradata)
        if self._scanner is not None:
            return self._scanner.scan(memoryview(packet), packet.is_keyframe, False)
        is_start = self._intra_only or packet.is_keyframe
        return PacketInfo(random_access=RandomAccess.CLOSED if is_start else RandomAccess.NONE)

    def _is_damaged(self, packet: Packet[Any]) -> bool:
        """Return True if a packet is damaged or others are missing before it."""
        # in transport streams FFmpeg flags the picture before the damaged one
        is_suspect, self._is_next_suspect = self._is_next_suspect, packet.is_corrupt
        has_gap = self._gaps is not None and self._gaps.has_gap_before(memoryview(packet))
        is_damaged = packet.is_corrupt or has_zeroed_slice(self.codec, memoryview(packet), self._length_size)
        return is_suspect or is_damaged or (has_gap and self._is_synchronized)

    def _begin_gop(self, facts: PacketInfo, time: int, arrival: float) -> None:
        has_skipped = bool(self._held) or not self._is_synchronized
        if self._held and self._changes_parameter_sets(self._held[0]):
            list(self._feed([self._held[0]]))  # later packets may refer to its parameter sets
        self._held.clear()
        if self._rap_arrival is not None and self._is_synchronized:
            self.gop_seconds = arrival - self._rap_arrival
        self._drops_leading = has_skipped and facts.random_access is RandomAccess.OPEN
        if has_skipped and self._context.is_open:
            self._context.flush_buffers()
        self._is_synchronized, self._rap_time, self._rap_arrival = True, time, arrival

    def _changes_parameter_sets(self, held: _Held) -> bool:
        changed = self._scanner is not None and self._scanner.has_changed_parameter_sets
        return changed or held.packet.has_sidedata("new_extradata")

    def lose_synchronization(self) -> None:
        """Drop everything up to the next random access point: packets are damaged or missing."""
        self._held.clear()
        self._is_synchronized = False
        if self._context.is_open:
            self._context.flush_buffers()

    def is_needed_before(self, target: float) -> bool:
        """Return True if a frame wanted at an arrival time probably depends on the packets held."""
        if len(self._held) > _MAX_HELD:
            return True
        if self.gop_seconds is None or self._rap_arrival is None:
            return False
        return target < self._rap_arrival + self.gop_seconds

    def decode(self, wanted: int | None) -> Iterator[tuple[int, VideoFrame]]:
        """Decode the packets held. Yields the ordinals of packets and their undamaged pictures.

        Args:
            wanted: ordinal of the last packet if its frame is wanted; disposable packets are skipped otherwise.
        """
        held, self._held = self._held, []
        yield from self._feed([each for each in held if self._must_feed(each, wanted)])

    def _must_feed(self, held: _Held, wanted: int | None) -> bool:
        if not held.facts.second_field:  # a second field goes with the first one
            # before the second GOP, higher temporal sub-layers may not have been seen
            is_highest = self.gop_seconds is not None and held.facts.temporal_id == self._max_temporal_id
            self._was_fed = held.ordinal == wanted or not (held.facts.disposable and is_highest)
        return self._was_fed

    def _feed(self, packets: list[_Held]) -> Iterator[tuple[int, VideoFrame]]:
        import av

        for held in packets:
            self.packets_fed += 1
            packet, is_broken = held.packet, False
            packet.pts = held.ordinal
            if self._units is not None:
                packet, is_broken = self._units.filter(packet)
            elif self.codec == "av1" and (needed := without_unneeded_obus(memoryview(packet))) is not None:
                packet = with_data(packet, needed)
            if not packet.size:
                continue
            try:
                pictures = self._context.decode(packet)
            except av.error.FFmpegError:
                pictures, is_broken = [], True
            is_broken |= any(picture.is_corrupt for picture in pictures)
            if is_broken and not held.facts.disposable:
                self.is_damaged = True
                self.lose_synchronization()
                return
            for picture in pictures:
                if picture.pts is not None and not picture.is_corrupt:
                    yield picture.pts, picture
