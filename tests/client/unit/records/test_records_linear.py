"""Decompressing costs work in proportion to the bytes, however they are cut into members, frames and blocks.

Work is the decoders' calls and what they copy, not time; ``benchmarks/decompression.py`` takes times.
"""

from __future__ import annotations

import zlib
from contextlib import nullcontext
from typing import Any

import cramjam
import lz4.frame
import pytest
import zstandard

from benchmarks.decompression import inputs
from slackwater.kafka.records import compression
from slackwater.kafka.records.compression import CODECS, DecompressionError, decompress

_BYTES = 100_000
_LIMIT_BYTES = 1 << 20
_BYTES_A_CALL = 1024
"""What a call may copy on top of a multiple of what it is given: a member's first piece, twice."""
_COPIES = 4
_LEAST_BYTES = 5
"""An empty block of snappy: nothing that is decoded by itself has fewer."""
_LEAST_STEP_BYTES = 4096
"""What a call makes at least, but for a part's first and last."""


class Work:
    """Counts calls of decoders, bytes they are given, and bytes of input that they copy for later."""

    def __init__(self) -> None:
        self.calls = self.copied = self.made = 0

    def count(self, given: Any, made: Any, kept: int = 0) -> None:
        self.calls += 1
        self.copied += len(given) + kept
        self.made += len(made) if hasattr(made, "__len__") else 0


class _Gunzip:
    def __init__(self, work: Work, wbits: int) -> None:
        self._work, self._real = work, _ZLIB_DECODER(wbits=wbits)

    def decompress(self, data: Any, max_length: int) -> bytes:
        made = self._real.decompress(data, max_length)
        self._work.count(data, made, len(self.unused_data) + len(self.unconsumed_tail))
        return made

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class _Unlz4:
    def __init__(self, work: Work) -> None:
        self._work, self._real = work, _LZ4_DECODER()

    def decompress(self, data: Any, max_length: int) -> bytes:
        made: bytes = self._real.decompress(data, max_length=max_length)
        self._work.count(data, made, len(self._real.unused_data or b""))
        return made

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class _Unzstd:
    def __init__(self, work: Work, **options: Any) -> None:
        self._work, self._real = work, _ZSTD_DECODER(**options)

    def stream_reader(self, data: Any, **options: Any) -> Any:
        self._work.count(data, b"")
        reader, work = self._real.stream_reader(data, **options), self._work

        class Counting:
            def __enter__(self) -> Counting:
                return self

            def __exit__(self, *_: object) -> None:
                reader.close()

            def read(self, size: int) -> bytes:
                made: bytes = reader.read(size)
                work.count(b"", made)
                return made

        return Counting()


_ZLIB_DECODER = zlib.decompressobj
_LZ4_DECODER = lz4.frame.LZ4FrameDecompressor
_ZSTD_DECODER = zstandard.ZstdDecompressor
_UNSNAP = cramjam.snappy.decompress_raw


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    counted = Work()

    def unsnap(block: bytes) -> Any:
        made = _UNSNAP(block)
        counted.count(block, made)
        return made

    class Snappy:
        decompress_raw = staticmethod(unsnap)
        decompress_raw_len = staticmethod(cramjam.snappy.decompress_raw_len)

    class Cramjam:
        snappy = Snappy
        DecompressionError = cramjam.DecompressionError

    monkeypatch.setattr(compression.zlib, "decompressobj", lambda wbits: _Gunzip(counted, wbits))
    monkeypatch.setattr(compression.lz4.frame, "LZ4FrameDecompressor", lambda: _Unlz4(counted))
    monkeypatch.setattr(
        compression.zstandard, "ZstdDecompressor", lambda **options: _Unzstd(counted, **options)
    )
    monkeypatch.setattr(compression, "cramjam", Cramjam)
    return counted


@pytest.mark.parametrize(("codec", "shape"), inputs())
def test_the_work_is_in_proportion_to_the_bytes(codec: str, shape: str, work: Work) -> None:
    data = inputs()[codec, shape](_BYTES)
    refused = pytest.raises(DecompressionError, match="unfolds to more") if shape == "bomb" else nullcontext()
    with refused:
        decompress(CODECS[codec], data, _LIMIT_BYTES)
    assert work.calls or shape == "empty streams"
    assert work.copied <= _COPIES * len(data) + _BYTES_A_CALL * work.calls
    assert work.calls <= 8 + len(data) // _LEAST_BYTES + work.made // _LEAST_STEP_BYTES
    assert work.made <= _LIMIT_BYTES + 1
