"""Writes engine/spec/environments/gym_tasks.py from the installed reasoning-gym:

python -m tests.engine.spec.environments.gym_table
"""

import dataclasses
import enum
import textwrap
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from engine.spec.environments import gym_tasks

SET_BY_US: Final = frozenset({"seed", "size"})
LEFT_OUT: Final = frozenset({"composite"})  # made of other tasks
BEGIN, END = 'TABLE: Final = """\\\n', '"""\n'


def installed_tasks() -> Mapping[str, tuple[str, ...]]:
    from reasoning_gym.factory import DATASETS

    return {name: _settable(config) for name, (_, config) in sorted(DATASETS.items()) if name not in LEFT_OUT}


def write_table() -> None:
    path = Path(gym_tasks.__file__)
    head, _, rest = path.read_text().partition(BEGIN)
    _, _, tail = rest.partition(END)
    path.write_text(f"{head}{BEGIN}{_table()}{END}{tail}")


def _table() -> str:
    rows = (f"{name}: {' '.join(params)}".rstrip() for name, params in installed_tasks().items())
    return "".join(textwrap.fill(row, 118, subsequent_indent="  ", break_on_hyphens=False) + "\n" for row in rows)


def _settable(config: type) -> tuple[str, ...]:
    hints = typing.get_type_hints(config)
    names = (field.name for field in dataclasses.fields(config))
    return tuple(sorted(name for name in names if name not in SET_BY_US and _is_scalar(hints[name])))


def _is_scalar(hint: Any) -> bool:
    """Of a type that a spec's parameter can have."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return any(_is_scalar(each) for each in typing.get_args(hint))
    if typing.get_origin(hint) is typing.Literal:
        return True
    if not isinstance(hint, type) or typing.get_origin(hint) is not None:
        return False
    return hint in (int, float, bool, str) or (issubclass(hint, enum.Enum) and issubclass(hint, str))


if __name__ == "__main__":
    write_table()
