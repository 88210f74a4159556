"""Changes to bytes that break readers: lengths at their limits, cuts, repeats, flipped bits."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from random import Random

_ODD_BYTES = (0, 1, 2, 0x7E, 0x7F, 0x80, 0x81, 0xFE, 0xFF)
_ODD_NUMBERS = (
    *(
        number.to_bytes(size, "big", signed=True)
        for size in (2, 4, 8)
        for number in (-1, -2, 0, 1, (1 << 8 * size - 1) - 1, -(1 << 8 * size - 1), 1 << 8 * size - 9)
    ),
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\x07",
    b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
    struct.pack(">d", float("nan")),
)


def mutated(rng: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """``data`` after one to four changes; ``others`` are what a piece may come from."""
    out = bytearray(data)
    for _ in range(1 + int(rng.random() * rng.random() * 4)):
        _change(rng, out, others)
    return bytes(out)


def _change(rng: Random, out: bytearray, others: Sequence[bytes]) -> None:
    draw = rng.random
    if not out:
        out += rng.randbytes(1 + int(draw() * 20))
        return
    at = int(draw() * len(out))
    kind = draw()
    if kind < 0.2:
        out[at] ^= 1 << int(draw() * 8)
    elif kind < 0.45:
        out[at] = _ODD_BYTES[int(draw() * len(_ODD_BYTES))]
    elif kind < 0.7:
        odd = _ODD_NUMBERS[int(draw() * len(_ODD_NUMBERS))]
        out[at : at + len(odd)] = odd
    elif kind < 0.76:
        del out[at:]
    elif kind < 0.82:
        del out[at : at + 1 + int(draw() * 12)]
    elif kind < 0.88:
        out[at:at] = rng.randbytes(1 + int(draw() * 12))
    elif kind < 0.94:
        out[at:at] = out[at : at + 1 + int(draw() * 60)]
    else:
        other = others[int(draw() * len(others))]
        start = int(draw() * len(other))
        out[at : at + int(draw() * 40)] = other[start : start + int(draw() * 80)]
