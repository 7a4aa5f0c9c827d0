"""`python -m engine bench NAME`: the benchmarks, which are part of the source tree and not of the engine."""

import importlib
import sys
from typing import Final

COMMAND: Final = "tests.bench.engine.command"


def bench(words: list[str]) -> int:
    try:
        command = importlib.import_module(COMMAND)
    except ModuleNotFoundError as error:
        if not f"{COMMAND}.".startswith(f"{error.name}."):
            raise
        sys.stderr.write("the benchmarks are not part of an image; run this command in a checkout of Laminar\n")
        return 2
    return int(command.bench(words))
