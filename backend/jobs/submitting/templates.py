"""The job templates that ship with the engine: specs to start from, by name.

Invariant: every template is a valid `JobSpec`, with all defaults filled in but those that depend on the model; a broken
file fails loudly at first use.
"""

from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from engine.spec.job import JobSpec


@cache
def templates() -> Mapping[str, JobSpec]:
    folder = files("engine.spec") / "templates"
    found = sorted((file for file in folder.iterdir() if file.name.endswith(".json")), key=lambda file: file.name)
    return {file.name.removesuffix(".json"): JobSpec.model_validate_json(file.read_bytes()) for file in found}
