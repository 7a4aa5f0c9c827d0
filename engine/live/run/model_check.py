"""The check of a job's model before any device is held: its folder's files agree, the spec asks nothing of it that its
code does not do, and its chat template takes a conversation like the job's.

It runs in a process of its own, `python -m engine.live.run.model_check`: torch and transformers would stay in the
driver's memory for as long as the job runs.

Invariant: exit status 0 says that the model may be built, REFUSED that standard output says why not; any other status
says nothing about the model.
"""

import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Final

from engine.live.run.model_source import BUILT_IN
from engine.spec.job import JobSpec

REFUSED: Final = 3
LOOK_UP_EVERY_S: Final = 1.0
TOLD_LETTERS: Final = 500


def check_model(spec: JobSpec, *, interrupted: Callable[[], None]) -> None:
    """Of a spec whose model is a folder. Raises `ValueError`, and what `interrupted` raises. Built-in models are not
    asked about: they are ours."""
    if spec.model.source in BUILT_IN:
        if spec.model.chat == "template" or spec.model.chat_options:
            raise ValueError(f"model.chat: {spec.model.source} has no chat template; leave what is about it empty")
        _refuse_tools(spec)
        return
    command = [sys.executable, "-m", "engine.live.run.model_check"]
    asked: str | None = spec.model_dump_json()
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        try:
            while True:
                try:
                    told, noise = child.communicate(asked, timeout=LOOK_UP_EVERY_S)
                    break
                except subprocess.TimeoutExpired:
                    asked = None  # it has been said
                    interrupted()
        except BaseException:
            child.kill()
            raise
    if child.returncode == REFUSED:
        raise ValueError(told.strip())
    if child.returncode:
        raise RuntimeError(f"the check of the model ended with {child.returncode}: {noise.strip()[-TOLD_LETTERS:]}")


def main() -> int:
    spec = JobSpec.model_validate_json(sys.stdin.read())
    try:
        with redirect_stdout(sys.stderr):  # what libraries have to say is no answer
            refuse_model(spec)
    except ValueError as error:
        print(error)  # noqa: T201
        return REFUSED
    return 0


def refuse_model(spec: JobSpec) -> None:
    """Raises `ValueError`."""
    from engine.models.families.agreement import check_folder  # torch, which the driver does without
    from engine.models.loading import resolve_model
    from engine.training.ranks.sequence_parallel import refuse_heads

    folder = resolve_model(spec.model.source)
    config = check_folder(folder)
    _refuse_chat(spec, folder)
    if not spec.only_evaluates:
        refuse_heads(config, num_sharers=spec.trainer.sequence_parallel)
    if (why := _why_not_the_decoder(folder)) is not None:
        _refuse_what_it_alone_has(spec, why)


def _refuse_chat(spec: JobSpec, folder: Path) -> None:
    from engine.environments.registry import observed_as
    from engine.live.rollout.wording import Wording

    wording = Wording.of_model(folder, spec.model)
    wording.try_out(observed_as(spec.environment))
    if not wording.is_by_template:
        _refuse_tools(spec)


def _refuse_tools(spec: JobSpec) -> None:
    from engine.environments.registry import needs_template

    if needs_template(spec.environment):
        raise ValueError(
            "environment.params: calls: tool_call needs a chat template, which tells the model of its tools; use "
            "marks, or a model that has one, with model.chat other than plain"
        )


def _why_not_the_decoder(folder: Path) -> str | None:
    from engine.models.loading import read_config

    try:
        read_config(folder)
    except ValueError as error:
        return str(error)
    return None


def _refuse_what_it_alone_has(spec: JobSpec, why: str) -> None:
    if spec.rollout.engine != "vllm":
        raise ValueError(f"rollout.engine must be vllm for this model, got {spec.rollout.engine}: {why}")
    if not spec.only_evaluates and spec.trainer.backend != "torch":
        raise ValueError(f"trainer.backend must be torch for this model, got {spec.trainer.backend}: {why}")
    if not spec.only_evaluates and spec.trainer.lora_rank:
        raise ValueError(f"trainer.lora_rank must be 0 for this model, got {spec.trainer.lora_rank}: {why}")


if __name__ == "__main__":
    sys.exit(main())
