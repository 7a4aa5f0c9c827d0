"""A folder that appears only when it is complete.

Invariant: the final name exists only with complete content; partial content is deleted, however writing ends.
"""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ..errors import LaminarError


@contextlib.contextmanager
def whole_folder(goal: Path) -> Iterator[Path]:
    """A hidden folder to write into, which is renamed to `goal` at the end."""
    if goal.exists():
        raise LaminarError(f"{goal} already exists. Move it, or choose another folder.")
    goal.parent.mkdir(parents=True, exist_ok=True)
    hidden = Path(tempfile.mkdtemp(prefix=".laminar-", dir=goal.parent))
    try:
        made = hidden / goal.name
        made.mkdir()
        yield made
        made.rename(goal)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
