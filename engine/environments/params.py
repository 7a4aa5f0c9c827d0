"""An environment's parameters: taken by name and type, and none left over.

Invariant: a wrong parameter is a `ValueError` that names it, the value given and the values that would be accepted.
"""

from collections.abc import Mapping, Sequence

Params = Mapping[str, str | int | float | bool]


class ParamReader:
    def __init__(self, environment: str, params: Params) -> None:
        self._environment = environment
        self._params = params
        self._asked: list[str] = []

    def text(self, name: str, default: str) -> str:
        value = self._take(name, default)
        if not isinstance(value, str):
            raise ValueError(f"{self._environment}: {name}: a text, got {value!r}")
        return value

    def choice(self, name: str, default: str, choices: Sequence[str]) -> str:
        value = self.text(name, default)
        if value not in choices:
            raise ValueError(f"{self._environment}: {name}: one of {', '.join(choices)}; got {value!r}")
        return value

    def number(self, name: str, default: float, low: float, high: float) -> float:
        value = self._take(name, default)
        if isinstance(value, bool | str) or not low <= value <= high:
            raise ValueError(f"{self._environment}: {name}: a number from {low:g} to {high:g}, got {value!r}")
        return float(value)

    def whole(self, name: str, default: int, low: int, high: int) -> int:
        value = self._take(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError(f"{self._environment}: {name}: a whole number from {low} to {high}, got {value!r}")
        return value

    def the_rest(self) -> dict[str, str | int | float | bool]:
        return {name: value for name, value in self._params.items() if name not in self._asked}

    def finish(self) -> None:
        for name in self.the_rest():
            accepted = ", ".join(self._asked) or "none"
            raise ValueError(f"{self._environment}: unknown parameter {name!r}; choose from {accepted}")

    def _take(self, name: str, default: str | int | float) -> str | int | float | bool:
        self._asked.append(name)
        return self._params.get(name, default)
