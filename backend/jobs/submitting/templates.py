"""The job templates that ship with the engine: specs to start from, by name, in the order in which they are offered.

    engine/spec/templates/**/NAME.json    a spec
                             NAME.py      its environment.code, where it has one

Invariants:
- every template is a valid `JobSpec`, with all defaults filled in but those that depend on the model; a broken
  file fails loudly at first use, and so does one without a row here;
- each runs as it is, on the built-in model and what is built in beside it.
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

LEARN, BRING, PACE = "What is learned", "Bring your own", "Who waits for whom"

_ABOUT: Final[Mapping[str, tuple[str, str]]] = {
    "running_sums": (LEARN, "One question, one answer: adding up, one sum after the other. The first to try."),
    "tool_sums": (LEARN, "Several turns with a tool between them that takes its time to answer."),
    "lora": (LEARN, "The same sums, training a small addition to the weights instead of all of them."),
    "evaluate": (LEARN, "Nothing is trained: a model answers questions once, and is measured."),
    "own_questions": (BRING, "Questions and answers from a file, each answer checked by a rule that you name."),
    "own_judge": (BRING, "Questions from a file, and a few lines of Python that say what an answer is worth."),
    "own_code": (BRING, "A Python file that asks, answers over several turns, and judges."),
    **{
        name: (PACE, f"{SCHEDULES[name].waits[0].upper()}{SCHEDULES[name].waits[1:]}.")
        for name in SCHEDULES
        if name != "laminar"  # which the others here have
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
    read = dict(_read(Path(str(files("engine.spec") / "templates"))))
    assert read.keys() == _ABOUT.keys(), f"each template has a row here: {read.keys() ^ _ABOUT.keys()}"
    return tuple(
        Template(name=name, group=group, about=about, spec=read[name]) for name, (group, about) in _ABOUT.items()
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
