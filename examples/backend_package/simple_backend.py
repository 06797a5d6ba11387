"""A backend that decodes with one FFmpeg thread."""

from __future__ import annotations

from itertools import chain
from typing import Any

import av
import numpy as np

from telecine.backends import Backend, BackendStatus, Decoded, DecodeRequest
from telecine.pixels.filter_graph import Converter
from telecine.plan.damage import unreliable_targets
from telecine.plan.ranges import DecodeRange, output_rows, split_at_resets


class SimpleBackend(Backend):
    """Feeds the planned packets and converts the wanted pictures."""

    name = "simple"

    def status(self) -> BackendStatus:
        return self.make_status(av.__version__)

    def decode(self, request: DecodeRequest) -> Decoded:
        geometry = request.geometry
        data = np.empty((len(request.plan.frames), geometry.height, geometry.width, 3), np.uint8)
        kept = np.zeros(len(data), np.bool_)
        for decode_pass in split_at_resets(request.plan.ranges):
            rows = output_rows(decode_pass)
            lost = self._decode_pass(request, decode_pass, rows, data)
            for packet in rows.keys() - unreliable_targets(request.index, decode_pass, lost):
                kept[list(rows[packet])] = True
        return Decoded(data, kept, "cpu")

    def _decode_pass(
        self, request: DecodeRequest, ranges: tuple[DecodeRange, ...], rows: dict[int, tuple[int, ...]], data: Any
    ) -> set[int]:
        """Fill the rows of some ranges. Return the packets that gave no intact picture."""
        decoder, convert = self._open_decoder(request), Converter(request.geometry)
        numbers = np.concatenate([range_.packets for range_ in ranges])
        lost = set(numbers.tolist())
        for number, packet in chain(request.reader.read(numbers), [(-1, None)]):
            request.deadline.check("decoding")
            if packet is not None:
                packet.pts = number  # a picture has the pts of its packet; None at the end drains the decoder
            try:
                for picture in decoder.decode(packet):
                    if not picture.is_corrupt:
                        lost.discard(picture.pts)
                        for row in rows.get(picture.pts, ()):
                            convert(picture, data[row])
            except av.error.FFmpegError:
                continue  # the packet stays lost
        return lost

    def _open_decoder(self, request: DecodeRequest) -> Any:
        stream = request.demuxer.stream.codec_context
        decoder: Any = av.CodecContext.create(stream.codec, "r")
        decoder.extradata, decoder.codec_tag = stream.extradata, stream.codec_tag
        decoder.width, decoder.height, decoder.thread_count = stream.width, stream.height, 1
        return decoder
