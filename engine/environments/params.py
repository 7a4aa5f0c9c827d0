"""An environment's parameters, as `engine.spec.environment_params` has them.

Invariant: a wrong parameter is a `ValueError` that names it, the value given and the values that would be accepted.
"""

from collections.abc import Mapping
from pathlib import Path

from engine.spec.environment_params import ENVIRONMENTS, Value

Params = Mapping[str, Value]


class ParamReader:
    def __init__(self, environment: str, params: Params) -> None:
        self._environment = environment
        self._rows = ENVIRONMENTS[environment].params
        self._params = params

    def text(self, name: str) -> str:
        assert self._rows[name].kind != "file", f"{name} names a data set: read it by file()"
        return str(self._taken(name))

    def file(self, name: str) -> Path | None:
        """Where `located_data` found what the parameter names: only rows of kind "file" are looked up and confined to
        a team's own. None: it names nothing."""
        assert self._rows[name].kind == "file", f"{name} is opened, and its row in environment_params says no file"
        path = str(self._taken(name))
        return Path(path) if path else None

    def number(self, name: str) -> float:
        return float(self._taken(name))

    def whole(self, name: str) -> int:
        return int(self._taken(name))

    def the_rest(self) -> dict[str, Value]:
        return {name: value for name, value in self._params.items() if name not in self._rows}

    def finish(self) -> None:
        for name in self.the_rest():
            accepted = ", ".join(self._rows) or "none"
            raise ValueError(f"{self._environment}: unknown parameter {name!r}; choose from {accepted}")

    def _taken(self, name: str) -> Value:
        row = self._rows[name]
        value = self._params.get(name, row.default)
        if (wrong := row.wrong(value)) is not None:
            raise ValueError(f"{self._environment}: {name}: {wrong}")
        return value
