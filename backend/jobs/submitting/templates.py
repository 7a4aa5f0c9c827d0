"""The job templates that ship with the engine: specs to start from, by name, in display order.

    engine/spec/templates/**/NAME.json    a spec
                             NAME.py      its environment.code, where it has one

Invariants:
- every template is a valid `JobSpec` with all defaults filled in, except those that depend on the model; a broken file
  fails loudly at first use, and so does a file without a row here;
- each template runs as it is, on the built-in model and built-in data.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Final

from engine.spec.job import JobSpec
from engine.spec.schedules import SCHEDULES

LEARN, BRING, PACE = "Tasks", "Bring your own", "Schedules"

_ABOUT: Final[Mapping[str, tuple[str, str]]] = {
    "running_sums": (LEARN, "One question, one answer: adding up numbers. Start here."),
    "tool_sums": (LEARN, "Several turns, with a slow tool in between."),
    "lora": (LEARN, "The same sums, training a small addition to the weights instead of all of them."),
    "evaluate": (LEARN, "No training: a model answers each question once and is scored."),
    "own_questions": (BRING, "Questions and answers from a file, each answer checked by a rule that you name."),
    "own_judge": (BRING, "Questions from a file, and a few lines of Python that score the answers."),
    "own_code": (BRING, "A Python file with prompts, several turns and a reward."),
    **{
        name: (PACE, f"{SCHEDULES[name].waits[0].upper()}{SCHEDULES[name].waits[1:]}.")
        for name in SCHEDULES
        if name != "laminar"  # the schedule of the other templates
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    name: str
    group: str
    about: str
    spec: JobSpec


@cache
def gallery() -> tuple[Template, ...]:
    specs = dict(_read(Path(str(files("engine.spec") / "templates"))))
    assert specs.keys() == _ABOUT.keys(), f"each template needs a row here: {specs.keys() ^ _ABOUT.keys()}"
    return tuple(
        Template(name=name, group=group, about=about, spec=specs[name]) for name, (group, about) in _ABOUT.items()
    )


@cache
def templates() -> Mapping[str, JobSpec]:
    return {each.name: each.spec for each in gallery()}


def _read(folder: Path) -> Iterator[tuple[str, JobSpec]]:
    for file in folder.rglob("*.json"):
        document, code = json.loads(file.read_bytes()), file.with_suffix(".py")
        if code.exists():
            document["environment"]["code"] = code.read_text(encoding="utf-8")
        yield file.stem, JobSpec.model_validate(document)
