"""Compression for data written once and read rarely: texts and lines shrink to a quarter or less."""

import zlib

_LEVEL = 1  # higher levels take four times as long for a tenth less size


def compress(content: bytes) -> bytes:
    return zlib.compress(content, _LEVEL)


def decompress(content: bytes | memoryview) -> bytes:
    return zlib.decompress(content)
