"""Reading numbers from a bit string, most significant bit first."""

from __future__ import annotations

__all__ = ["BitReader", "InvalidHeader"]


class InvalidHeader(ValueError):
    """The header ends before the field that was requested, or the field has an invalid value."""


class BitReader:
    """Reads fields of a header, from bit ``start`` on. Not thread-safe: one per header."""

    __slots__ = ("_bits", "_size", "position")

    def __init__(self, data: bytes, start: int = 0) -> None:
        self._bits = int.from_bytes(data, "big")
        self._size = 8 * len(data)
        self.position = start

    def u(self, count: int) -> int:
        """Read an unsigned number of ``count`` bits: u(n) and f(n) in the specifications."""
        self.position += count
        shift = self._size - self.position
        if shift < 0:
            raise InvalidHeader(f"{-shift} bits missing")
        return (self._bits >> shift) & ((1 << count) - 1)

    def flag(self) -> bool:
        """Read one bit."""
        return self.u(1) == 1

    def skip(self, count: int) -> None:
        """Skip ``count`` bits."""
        self.u(count)

    def ue(self) -> int:
        """Read an Exp-Golomb number: ue(v) of H.264 and HEVC, uvlc() of AV1."""
        zeros = 0
        while not self.u(1):
            zeros += 1
            if zeros > 32:
                raise InvalidHeader("an Exp-Golomb number of more than 32 bits")
        return (1 << zeros) - 1 + self.u(zeros)

    def se(self) -> int:
        """Read a signed Exp-Golomb number: se(v) of H.264 and HEVC."""
        code = self.ue()
        return (code + 1) // 2 if code & 1 else -(code // 2)
