"""A checkpoint as a Hugging Face folder: one .tar, generated while it is sent.

Invariants:
- it contains the files of the verified manifest, under their names, except those that only training needs;
- its length is known before the first byte, so an interrupted stream is recognizably incomplete;
- memory holds one piece of one part at a time.
"""

import re
import tarfile
from collections.abc import AsyncIterator, Iterator
from typing import Final

from asgiref.sync import sync_to_async

from backend.checkpoints.files import CheckpointFiles, MissingPart
from backend.checkpoints.models import Checkpoint
from engine.spec.checkpoint_manifest import CheckpointPart

# Needed to resume training, not to load the model; one file per rank.
_TRAINING_ONLY: Final = re.compile(r"optimizer\.safetensors|state-\d+-of-\d+\.safetensors|trainer\.json")
_BLOCK: Final = tarfile.BLOCKSIZE


def exported_parts(checkpoint: Checkpoint) -> dict[str, CheckpointPart]:
    """In the order of sending: small files first, so that a reader gets the settings early."""
    parts = {name: CheckpointPart.model_validate(part) for name, part in checkpoint.parts.items()}
    names = [name for name in parts if not _TRAINING_ONLY.fullmatch(name)]
    return {name: parts[name] for name in sorted(names, key=lambda name: (parts[name].num_bytes, name))}


def folder_name(checkpoint: Checkpoint) -> str:
    return f"{checkpoint.job_id}-step-{checkpoint.step}"


def tar_num_bytes(checkpoint: Checkpoint) -> int:
    headers = sum(len(_tar_header(checkpoint, name, part)) for name, part in exported_parts(checkpoint).items())
    return headers + sum(_pad(part.num_bytes) for part in exported_parts(checkpoint).values()) + 2 * _BLOCK


def tar_stream(checkpoint: Checkpoint, files: CheckpointFiles) -> Iterator[bytes]:
    """Raises `MissingPart` if a part's size has changed: a broken stream is better than a wrong file."""
    for name, part in exported_parts(checkpoint).items():
        yield _tar_header(checkpoint, name, part)
        left = part.num_bytes
        for piece in files.chunks(name, part):
            left -= len(piece)
            if left < 0:
                break
            yield piece
        if left:
            raise MissingPart(f"{name} has changed since its verification")
        yield bytes(_pad(part.num_bytes) - part.num_bytes)
    yield bytes(2 * _BLOCK)


async def unblocked(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Reads on a thread. Under ASGI, Django would load a plain iterator into memory before the first byte."""
    following = sync_to_async(lambda: next(pieces, None), thread_sensitive=False)
    while (piece := await following()) is not None:
        yield piece


def _tar_header(checkpoint: Checkpoint, name: str, part: CheckpointPart) -> bytes:
    info = tarfile.TarInfo(f"{folder_name(checkpoint)}/{name}")
    info.size, info.mode = part.num_bytes, 0o644
    info.mtime = int(checkpoint.created_at.timestamp())
    return info.tobuf(tarfile.PAX_FORMAT)


def _pad(num_bytes: int) -> int:
    return -(-num_bytes // _BLOCK) * _BLOCK
