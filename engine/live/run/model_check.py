"""Checks a job's model before any device is held: the folder's files are consistent, the model supports the spec, and
the chat template accepts the job's conversations and its questions, if they are in files.

The check runs in a process of its own, model_check_child: torch and transformers would stay in the driver's memory as
long as the job runs.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from engine.fit.shape import ModelShape
from engine.fit.shards import why_not_shardable
from engine.live.run.model_source import BUILT_IN
from engine.spec.job import JobSpec

REFUSED: Final = 3
LOOK_UP_EVERY_S: Final = 1.0
SHOWN_LETTERS: Final = 500
TOOLS_HIDDEN: Final = (
    "environment.params: calls: tool_call needs a chat template that shows tools to the model; use marks, or a model "
    "with such a template, with model.chat other than plain"
)


def check_model(spec: JobSpec, *, data_folder: Path | None = None, interrupted: Callable[[], None]) -> list[str]:
    """Returns warnings for the user. Raises `ValueError`, and errors of `interrupted`. Built-in models are ours: only
    their questions in files need the process."""
    from engine.environments.registry import described_tools, has_questions

    if spec.model.source in BUILT_IN:
        if spec.model.chat == "template" or spec.model.chat_options:
            raise ValueError(
                f"model.chat: {spec.model.source} has no chat template; leave model.chat and model.chat_options empty"
            )
        if described_tools(spec.environment):
            raise ValueError(TOOLS_HIDDEN)
        refuse_sharding(spec, BUILT_IN[spec.model.source])
    if spec.model.source in BUILT_IN and not has_questions(spec.environment):
        return []
    folder = [] if data_folder is None else [str(data_folder)]
    command = [sys.executable, "-m", "engine.live.run.model_check_child", *folder]
    document: str | None = spec.model_dump_json()
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        try:
            while True:
                try:
                    output, noise = child.communicate(document, timeout=LOOK_UP_EVERY_S)
                    break
                except subprocess.TimeoutExpired:
                    document = None  # it was sent
                    interrupted()
        except BaseException:
            child.kill()
            raise
    if child.returncode == REFUSED:
        raise ValueError(output.strip())
    if child.returncode:
        raise RuntimeError(f"the model check failed with status {child.returncode}: {noise.strip()[-SHOWN_LETTERS:]}")
    warnings: list[str] = json.loads(output)
    return warnings


def refuse_sharding(spec: JobSpec, folder: Path) -> None:
    if spec.resources.devices_per_replica > 1:
        shape = ModelShape.of_config(json.loads((folder / "config.json").read_text()))
        if (why := why_not_shardable(shape, spec.resources.devices_per_replica)) is not None:
            raise ValueError(why)
