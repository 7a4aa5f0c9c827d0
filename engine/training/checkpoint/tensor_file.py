"""Writes safetensors files as a stream of tensors, which are not collected first, and hashes the written bytes.

Invariants:
- progress is reported for every block, however large the file;
- itemsizes never grow from one tensor to the next, so that every tensor is aligned to its numbers.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from engine.process.progress import working
from engine.spec.checkpoint_manifest import CheckpointPart

BLOCK_BYTES: Final = 1 << 24

_SPELLED: Final = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.uint8: "U8",
}


@dataclass(frozen=True, slots=True)
class Entry:
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize


def write_tensors(file: Path, entries: Sequence[Entry], contents: Iterable[Tensor]) -> CheckpointPart:
    """`contents`: tensors on the host, each with the values of one or several entries, in their order."""
    sizes = [entry.dtype.itemsize for entry in entries]
    assert sizes == sorted(sizes, reverse=True), "a tensor would begin in the middle of a number"
    digest, num_bytes = hashlib.sha256(), 0
    with file.open("wb") as stream:
        for block in _split_blocks(entries, contents):
            with working("write"):
                digest.update(block)
                stream.write(block)
            num_bytes += len(block)
    expected = len(_make_header(entries)) + sum(entry.num_bytes for entry in entries)
    assert num_bytes == expected, f"{file.name}: {num_bytes} of {expected} bytes written"
    return CheckpointPart(num_bytes=num_bytes, sha256=digest.hexdigest())


def write_named(file: Path, tensors: Mapping[str, Tensor]) -> CheckpointPart:
    """Writes tensors under their names, those with the largest itemsize first."""
    ordered = sorted(tensors.items(), key=lambda named: -named[1].element_size())
    entries = [Entry(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in ordered]
    return write_tensors(file, entries, (tensor for _, tensor in ordered))


def _split_blocks(entries: Sequence[Entry], contents: Iterable[Tensor]) -> Iterator[memoryview]:
    yield memoryview(_make_header(entries))
    for tensor in contents:
        if tensor.numel():
            content: memoryview = tensor.contiguous().view(-1).view(torch.uint8).numpy().data
            for start in range(0, len(content), BLOCK_BYTES):
                yield content[start : start + BLOCK_BYTES]


def _make_header(entries: Sequence[Entry]) -> bytes:
    described: dict[str, object] = {"__metadata__": {"format": "pt"}}
    begin = 0
    for entry in entries:
        end = begin + entry.num_bytes
        described[entry.name] = {
            "dtype": _SPELLED[entry.dtype],
            "shape": list(entry.shape),
            "data_offsets": [begin, end],
        }
        begin = end
    content = json.dumps(described, separators=(",", ":")).encode()
    content += b" " * (-len(content) % 8)
    return len(content).to_bytes(8, "little") + content
