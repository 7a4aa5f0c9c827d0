"""Reads and validates an environment's parameters by their rows in `engine.spec.environments.params`.

Invariant: a wrong parameter raises a `ValueError` that names it, the value given and the values that are accepted.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from engine.spec.environments.params import ENVIRONMENTS, Value

Params = Mapping[str, Value]


class ParamReader:
    def __init__(self, environment: str, params: Params) -> None:
        self._environment = environment
        self._rows = ENVIRONMENTS[environment].params
        self._params = params

    def text(self, name: str) -> str:
        assert self._rows[name].kind != "file", f"{name} names a data set: read it by file()"
        return str(self._validated(name))

    def file(self, name: str) -> Path | None:
        """The path that `locate_data` put in place of the name: it resolves rows of kind "file" only, and only within
        a team's own data. None: the parameter is empty."""
        assert self._rows[name].kind == "file", f"{name} is opened as a file, but its row's kind is not file"
        path = str(self._validated(name))
        return Path(path) if path else None

    def number(self, name: str) -> float:
        return float(self._validated(name))

    def whole(self, name: str) -> int:
        return int(self._validated(name))

    def the_rest(self) -> dict[str, Value]:
        return {name: value for name, value in self._params.items() if name not in self._rows}

    def check(self, rule: Callable[[Params], Iterator[tuple[str, str]]]) -> None:
        """Applies a rule over several parameters. Raises `ValueError`."""
        for _, error in rule(self._params):
            raise ValueError(f"{self._environment}: {error}")

    def finish(self) -> None:
        for name in self.the_rest():
            accepted = ", ".join(self._rows) or "none"
            raise ValueError(f"{self._environment}: unknown parameter {name!r}; choose from {accepted}")

    def _validated(self, name: str) -> Value:
        row = self._rows[name]
        value = self._params.get(name, row.default)
        if (wrong := row.wrong(value)) is not None:
            raise ValueError(f"{self._environment}: {name}: {wrong}")
        return value
