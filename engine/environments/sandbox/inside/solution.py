"""Loads a model's program and calls its functions for the tests, which run in another sandbox."""

import traceback
from pathlib import Path

from values import decoded, encoded  # type: ignore[import-not-found]

_NAMESPACE: dict[str, object] = {"__name__": "solution"}


def load_solution() -> dict[str, object]:
    """The names of callables, or the error if the program did not load."""
    try:
        exec(compile(Path("/box/solution.py").read_text(), "solution.py", "exec"), _NAMESPACE)  # noqa: S102
    except MemoryError:
        raise
    except BaseException:  # noqa: BLE001 - the program may raise anything, SystemExit too
        return {"raised": traceback.format_exc().strip().splitlines()[-1]}
    return {"names": sorted(name for name, value in _NAMESPACE.items() if callable(value))}


def call_solution(name: str, arguments: object, keywords: object) -> dict[str, object]:
    try:
        function = _NAMESPACE[name]
        return {"value": encoded(function(*decoded(arguments), **decoded(keywords)))}  # type: ignore[operator]
    except MemoryError:
        raise
    except BaseException as error:  # noqa: BLE001 - as above
        return {"raised": [type(error).__name__, str(error)[:300]]}
