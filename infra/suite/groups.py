"""Which test files share one xdist worker.

Invariants:
- the tests of one file run in one worker, in order;
- everything that starts Ray, vLLM or a whole site runs in the same worker: two of those at once starve each other;
- that group comes first, so that its worker helps with the rest afterwards.
"""

import re
from functools import cache
from pathlib import Path
from typing import Final

HEAVY_MARKS: Final = frozenset({"ray", "e2e", "vllm", "site"})
HEAVY_GROUP: Final = "ray"
_NAMES_A_HEAVY_MARK: Final = re.compile(rf"\bmark\.({'|'.join(sorted(HEAVY_MARKS))})\b")


def group_of(nodeid: str, root: Path) -> str:
    """`root`: the folder that test names are relative to."""
    file = nodeid.split("::", 1)[0]
    return HEAVY_GROUP if names_heavy_mark(root / file) else file


@cache
def names_heavy_mark(file: Path) -> bool:
    """Whether the file's own text names one: the controller of xdist knows the tests by name only."""
    return bool(_NAMES_A_HEAVY_MARK.search(file.read_text()))
