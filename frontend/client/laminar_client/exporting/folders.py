"""A folder that is there when it is whole, and not before.

Invariant: however the writing ends, what stands under the final name is complete; what is not goes away.
"""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ..errors import LaminarError


@contextlib.contextmanager
def whole_folder(goal: Path) -> Iterator[Path]:
    """A hidden folder to write into, which becomes `goal`."""
    if goal.exists():
        raise LaminarError(f"{goal} is there already: move it away, or choose another folder.")
    goal.parent.mkdir(parents=True, exist_ok=True)
    hidden = Path(tempfile.mkdtemp(prefix=".laminar-", dir=goal.parent))
    try:
        made = hidden / goal.name
        made.mkdir()
        yield made
        made.rename(goal)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
