"""engine/spec/series.md, written from the declarations by `python -m engine.spec.series_table`."""

import sys
from pathlib import Path
from typing import Final

from engine.spec.series import SERIES

DOCUMENT: Final = Path(__file__).with_name("series.md")

_HEAD: Final = """\
# The series of a job

`python -m engine.spec.series_table` writes this table from `engine/spec/series.py`. A series has a point for each step;
those of evaluations have one for each evaluated version. `*` stands for a part of the name that a run decides. A share
is between 0 and 1. Some series need a setting: a critic, a teacher, a reference, a mixture, several updates in a step.

| series | unit | meaning | measured by |
|---|---|---|---|
"""


def document() -> str:
    rows = (
        f"| `{row.name}` | {row.unit} | {row.meaning} | `{module}` |\n"
        for module, rows in SERIES.items()
        for row in rows
    )
    return _HEAD + "".join(rows)


def main() -> int:
    DOCUMENT.write_text(document())
    return 0


if __name__ == "__main__":
    sys.exit(main())
