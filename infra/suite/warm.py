"""`python -m infra.suite.warm ARGUMENTS…`: pytest twice in one process, of which the second run is recorded.

The first test that needs torch or transformers pays for the import, up to 10 s: that time is not its own.
"""

import os
import sys

import pytest

from infra.suite.plugin import RECORD


def main(arguments: list[str]) -> int:
    record = os.environ.pop(RECORD)
    pytest.main(arguments)
    os.environ[RECORD] = record
    return int(pytest.main(arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
