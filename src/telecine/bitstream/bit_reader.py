"""Reading numbers out of a bit string, most significant bit first."""

from __future__ import annotations

__all__ = ["BitReader", "Truncated"]


class Truncated(ValueError):
    """The header ends before the field that was asked for."""


class BitReader:
    """Reads fields of a header. Not thread-safe: one per header.

    Args:
        data: the header's bytes; only what the fields need is looked at.
        start: the bit to begin at.
    """

    __slots__ = ("_bits", "_size", "position")

    def __init__(self, data: bytes, start: int = 0) -> None:
        self._bits = int.from_bytes(data, "big")
        self._size = 8 * len(data)
        self.position = start

    def u(self, count: int) -> int:
        """An unsigned number of ``count`` bits: u(n), f(n) of the specifications."""
        self.position += count
        shift = self._size - self.position
        if shift < 0:
            raise Truncated(f"{-shift} bits missing")
        return (self._bits >> shift) & ((1 << count) - 1)

    def flag(self) -> bool:
        """One bit."""
        return self.u(1) == 1

    def skip(self, count: int) -> None:
        """Pass over ``count`` bits."""
        self.u(count)

    def ue(self) -> int:
        """An Exp-Golomb number: ue(v) of H.264 and HEVC."""
        zeros = 0
        while not self.u(1):
            zeros += 1
            if zeros > 32:
                raise Truncated("an Exp-Golomb number of more than 32 bits")
        return (1 << zeros) - 1 + self.u(zeros)

    def se(self) -> int:
        """A signed Exp-Golomb number: se(v) of H.264 and HEVC."""
        code = self.ue()
        return (code + 1) // 2 if code & 1 else -(code // 2)
