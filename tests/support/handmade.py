"""Streams that no available encoder makes, written bit by bit from the syntax in the specifications."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt

from telecine.bitstream.nal import START_CODE, escape

__all__ = ["Bits", "H264Stream", "divx_packed", "mux", "nal_unit"]


class Bits:
    """A bit string to append to. Every method that appends returns the object, so that calls can be chained."""

    def __init__(self) -> None:
        self._bits: list[int] = []

    def u(self, count: int, value: int) -> Bits:
        """Append an unsigned number of ``count`` bits."""
        self._bits += [value >> i & 1 for i in reversed(range(count))]
        return self

    def ue(self, *values: int) -> Bits:
        """Append Exp-Golomb numbers."""
        for value in values:
            width = (value + 1).bit_length()
            self.u(width - 1, 0).u(width, value + 1)
        return self

    def se(self, *values: int) -> Bits:
        """Append signed Exp-Golomb numbers."""
        return self.ue(*(2 * value - 1 if value > 0 else -2 * value for value in values))

    def pad(self, first: int = 0) -> Bits:
        """Append ``first`` and zeros up to a whole byte."""
        while len(self._bits) % 8:
            self.u(1, first)
            first = 0
        return self

    def trailing(self) -> Bits:
        """Append rbsp_trailing_bits()."""
        return self.u(1, 1).pad()

    def bytes(self) -> bytes:
        """Return the bits as bytes; the last byte is filled with zeros."""
        return bytes(int("".join(map(str, self._bits[at : at + 8])).ljust(8, "0"), 2) for at in range(0, len(self), 8))

    def __len__(self) -> int:
        return len(self._bits)


def nal_unit(header: bytes, payload: bytes) -> bytes:
    """Return a NAL unit with start code and emulation prevention."""
    return START_CODE + header + escape(payload)


@dataclass(frozen=True)
class H264Stream:
    """Writes H.264: a parameter set and pictures of PCM macroblocks (intra) or of skipped ones (predicted)."""

    poc_type: int = 0
    interlaced: bool = True
    number: int = 0
    """Number of both parameter sets."""
    frame_num_bits: int = 4
    profile: int = 77
    scaling_lists: bool = False
    separate_planes: bool = False
    poc_offsets: Sequence[int] = (4,)
    offset_unreferenced: int = -2
    width: int = 3
    """Macroblocks."""
    map_units: int = 2
    """Height in macroblocks, or in pairs of them if ``interlaced``."""

    def parameter_sets(self) -> bytes:
        """Return SPS and PPS, 7.3.2.1 and 7.3.2.2."""
        bits = Bits().u(8, self.profile).u(8, 0).u(8, 30).ue(self.number)
        if self.profile == 244:
            bits.ue(3 if self.separate_planes else 1)
            if self.separate_planes:
                bits.u(1, 1)
            bits.ue(0, 0).u(1, 0).u(1, self.scaling_lists)
            if self.scaling_lists:
                # a list that is all deltas, one that ends early (the next scale is 0), and one of 8x8
                bits.u(1, 1).se(*([1, -1] * 8)).u(1, 1).se(-8).u(4, 0).u(1, 1).se(*([2, -2] * 32)).u(1, 0)
                if self.separate_planes:
                    bits.u(4, 0)
        bits.ue(self.frame_num_bits - 4, self.poc_type)
        if self.poc_type == 0:
            bits.ue(4)  # eight bits of pic_order_cnt_lsb
        elif self.poc_type == 1:
            bits.u(1, 0).se(self.offset_unreferenced, 1).ue(len(self.poc_offsets)).se(*self.poc_offsets)
        bits.ue(4).u(1, 0).ue(self.width - 1, self.map_units - 1).u(1, not self.interlaced)
        if self.interlaced:
            bits.u(1, 0)
        bits.u(1, 1).u(1, 0).u(1, 0)
        pps = Bits().ue(self.number, self.number).u(2, 0).ue(0, 0, 0).u(3, 0).se(0, 0, 0).u(3, 0)
        return nal_unit(b"\x67", bits.trailing().bytes()) + nal_unit(b"\x68", pps.trailing().bytes())

    def picture(
        self,
        value: int,
        *,
        frame_num: int,
        poc: int = 0,
        poc_delta: int = 0,
        reference: bool = True,
        idr: bool = False,
        field: str | None = None,
        kind: str = "I",
    ) -> bytes:
        """One slice that is a whole frame or field, 7.3.3 and 7.3.4.

        Args:
            value: shade of the PCM samples.
            field: "top", "bottom", or None for a frame.
            kind: "I", or "P" to repeat the first reference.
        """
        bits = self._slice_header(
            kind,
            frame_num=frame_num,
            poc=poc,
            poc_delta=poc_delta,
            reference=reference,
            idr=idr,
            idr_number=value % 2,
            field=field,
        )
        macroblocks = self.width * self.map_units * (2 if self.interlaced and field is None else 1)
        if kind == "P":
            bits.ue(macroblocks)
        for at in range(macroblocks if kind == "I" else 0):
            bits.ue(25).pad()
            for sample in range(256):
                bits.u(8, 16 + (value + 3 * at + sample % 16) % 200)
            bits.u(8 * 128, int.from_bytes(b"\x80" * 128, "big"))
        return nal_unit(bytes([(2 * reference) << 5 | (5 if idr else 1)]), bits.trailing().bytes())

    def painted(
        self,
        planes: Sequence[npt.NDArray[np.uint8]],
        *,
        frame_num: int,
        poc: int,
        field: str,
        reference: bool = True,
        idr: bool = False,
    ) -> bytes:
        """Return a field with the samples of a picture, in PCM macroblocks.

        The top field is intra coded. The bottom field is predicted, and its last row of macroblocks is that of the
        first field that it may refer to: the bottom field before it, else its own top field.

        Args:
            planes: Y, Cb and Cr of the whole frame, 4:2:0.
            frame_num: as the other arguments, see :meth:`picture`.
        """
        kind = "I" if field == "top" else "P"
        bits = self._slice_header(kind, frame_num=frame_num, poc=poc, reference=reference, idr=idr, field=field)
        luma, cb, cr = (plane[int(field == "bottom") :: 2] for plane in planes)
        rows = self.map_units - (kind == "P")
        data = bytearray()
        for at in range(self.width * rows):
            y, x = divmod(at, self.width)
            if kind == "P":
                bits.ue(0)  # mb_skip_run
            bits.ue(25 if kind == "I" else 30).pad()
            data += bits.bytes() + luma[16 * y : 16 * y + 16, 16 * x : 16 * x + 16].tobytes()
            data += b"".join(plane[8 * y : 8 * y + 8, 8 * x : 8 * x + 8].tobytes() for plane in (cb, cr))
            bits = Bits()  # samples end on a whole byte
        if kind == "P":
            bits.ue(self.width)
        data += bits.trailing().bytes()
        return nal_unit(bytes([(2 * reference) << 5 | (5 if idr else 1)]), bytes(data))

    def _slice_header(
        self,
        kind: str,
        *,
        frame_num: int,
        poc: int,
        poc_delta: int = 0,
        reference: bool = True,
        idr: bool = False,
        idr_number: int = 0,
        field: str | None = None,
    ) -> Bits:
        bits = Bits().ue(0, {"I": 7, "P": 5}[kind], self.number)
        if self.separate_planes:
            bits.u(2, 0)
        bits.u(self.frame_num_bits, frame_num % (1 << self.frame_num_bits))
        if self.interlaced:
            bits.u(1, field is not None)
            if field is not None:
                bits.u(1, field == "bottom")
        if idr:
            bits.ue(idr_number)
        if self.poc_type == 0:
            bits.u(8, poc % 256)
        elif self.poc_type == 1:
            bits.se(poc_delta)
        if kind == "P":
            bits.u(2, 0)
        if reference:
            bits.u(2 if idr else 1, 0)
        return bits.se(0)


def mux(
    path: Path,
    packets: Iterable[bytes],
    like: Path,
    rate: int,
    keys: set[int],
    times: Sequence[int],
    bare: bool = False,
) -> None:
    """Mux packets into a container, with these presentation times in frames. The file name says the format.

    Args:
        like: a file with a stream of the same kind.
        keys: numbers of the packets that are flagged as key frames.
        bare: True to write no extradata; the first packet has the parameter sets too.
    """
    with av.open(str(like)) as raw, av.open(str(path), "w") as target:
        stream = target.add_stream_from_template(raw.streams.video[0])
        if bare:
            stream.codec_context.extradata = None
        first = min(time - at for at, time in enumerate(times))
        for at, (data, time) in enumerate(zip(packets, times, strict=True)):
            packet = av.Packet(data)
            packet.stream, packet.time_base = stream, Fraction(1, rate)
            packet.pts, packet.dts, packet.duration = time, at + first, 1
            packet.is_keyframe = at in keys
            target.mux(packet)


def divx_packed(packets: Sequence[bytes]) -> list[bytes]:
    """Pack MPEG-4 part 2 as DivX 5 did: move each B-VOP to the packet before it, and put an empty VOP in its packet.

    Args:
        packets: with at most one B-VOP in a row, and 25 ticks a second in their VOL header.
    """
    vop = b"\0\0\1\xb6"
    # P-VOP, no whole second, marker, 5 bits of time, marker, not coded
    empty = vop + Bits().u(2, 1).u(1, 0).u(1, 1).u(5, 0).u(1, 1).u(1, 0).u(1, 0).pad(1).bytes()
    packed: list[bytes] = []
    for data in packets:
        if data[data.index(vop) + 4] >> 6 == 2:
            packed[-1] += data
            packed.append(empty)
        else:
            packed.append(data)
    at = packed[0].index(vop)
    group = packed[0].find(b"\0\0\1\xb3")
    at = group if 0 <= group < at else at
    packed[0] = packed[0][:at] + b"\0\0\1\xb2DivX503b1393p" + packed[0][at:]
    return packed
