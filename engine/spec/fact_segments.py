"""The names of a spool's segments: `facts/000000000001.jsonl`, the number of a segment's first fact in each.

The driver writes them, the control plane reads those of a driver that is gone.

Invariants:
- a segment holds every fact from its number to the one before the next segment's number;
- a name that is not of this form is no segment.
"""

import errno
import re
from pathlib import Path
from typing import Final

SPOOL_FOLDER: Final = "facts"
"""In an attempt's folder."""

NO_FOLDER: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
_NAME: Final = re.compile(r"([0-9]{12})\.jsonl")


def segment_name(first_seq: int) -> str:
    return f"{first_seq:012d}.jsonl"


def first_seqs(folder: Path) -> list[int]:
    """The first fact's number of each segment in this folder, in order; none where there is no folder."""
    try:
        matches = [_NAME.fullmatch(path.name) for path in folder.iterdir()]
    except OSError as error:
        if error.errno not in NO_FOLDER:
            raise
        return []
    return sorted(int(match[1]) for match in matches if match is not None and int(match[1]) > 0)
