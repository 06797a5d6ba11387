"""Code points of ITU-T H.273 and of the colour range, with FFmpeg's names for them."""

from __future__ import annotations

__all__ = [
    "FULL_RANGE", "HDR_TRANSFERS", "LIMITED_RANGE", "MATRICES", "RANGES", "RGB_MATRIX", "UNSPECIFIED",
    "UNSPECIFIED_RANGE", "matrix_code", "range_code",
]  # fmt: skip

UNSPECIFIED = 2
"""Code point of an unspecified matrix, transfer or set of primaries."""
RGB_MATRIX = 0
"""Matrix coefficients of pictures that are stored as RGB."""
UNSPECIFIED_RANGE, LIMITED_RANGE, FULL_RANGE = 0, 1, 2
"""Values of FFmpeg's AVColorRange."""

MATRICES = {
    0: "gbr", 1: "bt709", 4: "fcc", 5: "bt470bg", 6: "smpte170m", 7: "smpte240m", 8: "ycgco", 9: "bt2020nc",
    10: "bt2020c", 14: "ictcp",
}  # fmt: skip
"""Names of matrix coefficients (H.273 table 4). Other codes are "unknown"."""
RANGES = {LIMITED_RANGE: "tv", FULL_RANGE: "pc"}
"""Names of colour ranges."""

HDR_TRANSFERS = {16: "PQ (SMPTE ST 2084)", 18: "HLG (ARIB STD-B67)"}
"""Names of the transfer characteristics of high dynamic range (H.273 table 3)."""

_MATRIX_CODES = {name: code for code, name in MATRICES.items()}
_RANGE_CODES = {name: code for code, name in RANGES.items()}


def matrix_code(name: str) -> int:
    """Return the code point of matrix coefficients; :data:`UNSPECIFIED` for any other name, such as "unknown"."""
    return _MATRIX_CODES.get(name, UNSPECIFIED)


def range_code(name: str) -> int:
    """Return the AVColorRange value of a name; :data:`UNSPECIFIED_RANGE` for any other name, such as "unknown"."""
    return _RANGE_CODES.get(name, UNSPECIFIED_RANGE)
