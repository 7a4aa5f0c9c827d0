"""The file names of a spool's segments: `facts/000000000001.jsonl`, where the number is the segment's first fact.

The driver writes segments; the control plane reads those of a driver that has ended.

Invariants:
- a segment holds every fact from its number to the one before the next segment's number;
- a file with another form of name is not a segment;
- a folder is never read beyond `MOST_ENTRIES`: a hostile node may have filled it.
"""

import errno
import os
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

SPOOL_FOLDER: Final = "facts"
"""In an attempt's folder."""

NO_FOLDER: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
MOST_ENTRIES: Final = 100_000
"""6 TB of facts, which no run writes."""
_NAME: Final = re.compile(r"([0-9]{12})\.jsonl")


def segment_name(first_seq: int) -> str:
    return f"{first_seq:012d}.jsonl"


def first_seqs(folder: Path) -> list[int]:
    """The first fact's number of each segment in this folder, sorted; empty if the folder does not exist."""
    return sorted(_first_seqs(folder))


def has_segments(folder: Path) -> bool:
    """True also for a folder that is too full to be searched: a driver has begun there."""
    try:
        return any(_first_seqs(folder))
    except ValueError:
        return True


def _first_seqs(folder: Path) -> Iterator[int]:
    """Raises `ValueError` if there are more than `MOST_ENTRIES`."""
    try:
        with os.scandir(folder) as entries:
            for entry in islice(entries, MOST_ENTRIES):
                match = _NAME.fullmatch(entry.name)
                if match is not None and int(match[1]) > 0:
                    yield int(match[1])
            if next(entries, None) is not None:
                raise ValueError(f"{folder} has more than {MOST_ENTRIES:,} entries, and is read no further")
    except OSError as error:
        if error.errno not in NO_FOLDER:
            raise
