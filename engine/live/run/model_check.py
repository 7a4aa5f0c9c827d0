"""Checks a job's model before any device is held: the folder's files are consistent, the model supports the spec, and
the chat template accepts the job's conversations and its questions, if they are in files.

It runs in a process of its own, `python -m engine.live.run.model_check`: torch and transformers would stay in the
driver's memory as long as the job runs.

Invariant: exit status 0: the model may be built, with warnings as a JSON list on standard output; REFUSED: standard
output has the reason; any other status: the check itself failed.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Final

from engine.fit.shape import ModelShape
from engine.fit.shards import why_not_shardable
from engine.live.run.model_source import BUILT_IN
from engine.spec.job import JobSpec

REFUSED: Final = 3
LOOK_UP_EVERY_S: Final = 1.0
SHOWN_LETTERS: Final = 500
TEMPLATE_CPU_S: Final = 60  # Qwen3's template takes 0.2 ms for the same conversation
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
        _refuse_dealing(spec, BUILT_IN[spec.model.source])
    if spec.model.source in BUILT_IN and not has_questions(spec.environment):
        return []
    folder = [] if data_folder is None else [str(data_folder)]
    command = [sys.executable, "-m", "engine.live.run.model_check", *folder]
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
    if child.returncode == -signal.SIGPROF:
        raise ValueError(f"the chat template must render one conversation within {TEMPLATE_CPU_S} s of CPU time")
    if child.returncode:
        raise RuntimeError(f"the model check failed with status {child.returncode}: {noise.strip()[-SHOWN_LETTERS:]}")
    warnings: list[str] = json.loads(output)
    return warnings


def main() -> int:
    spec = JobSpec.accepted(json.load(sys.stdin))
    try:
        with redirect_stdout(sys.stderr):  # output of libraries is not the answer
            warnings = refuse_model(spec, data_folder=Path(sys.argv[1]) if sys.argv[1:] else None)
    except ValueError as error:
        print(error)  # noqa: T201
        return REFUSED
    print(json.dumps(warnings))  # noqa: T201
    return 0


def refuse_model(spec: JobSpec, *, data_folder: Path | None = None) -> tuple[str, ...]:
    """Returns warnings. Raises `ValueError` if the model is refused."""
    from engine.live.run.chat_check import check_chat
    from engine.models.families.agreement import check_folder  # imports torch, which the driver does not need
    from engine.models.loading import resolve_model
    from engine.training.ranks.sequence_parallel import refuse_heads

    folder = resolve_model(spec.model.source)
    config = check_folder(folder)
    warnings = check_chat(
        spec,
        folder,
        max_positions=config.max_positions,
        vocab_size=config.vocab_size,
        data_folder=data_folder,
    )
    _refuse_dealing(spec, folder)
    if not spec.only_evaluates:
        refuse_heads(config, num_sharers=spec.trainer.sequence_parallel)
    if (why := _why_not_the_decoder(folder)) is not None:
        _refuse_decoder_only_settings(spec, why)
    return warnings


def _refuse_dealing(spec: JobSpec, folder: Path) -> None:
    if spec.resources.devices_per_replica > 1:
        shape = ModelShape.of_config(json.loads((folder / "config.json").read_text()))
        if (why := why_not_shardable(shape, spec.resources.devices_per_replica)) is not None:
            raise ValueError(why)


def _why_not_the_decoder(folder: Path) -> str | None:
    from engine.models.loading import read_config

    try:
        read_config(folder)
    except ValueError as error:
        return str(error)
    return None


def _refuse_decoder_only_settings(spec: JobSpec, why: str) -> None:
    if spec.rollout.engine != "vllm":
        raise ValueError(f"rollout.engine must be vllm for this model, got {spec.rollout.engine}: {why}")
    if not spec.only_evaluates and spec.trainer.backend != "torch":
        raise ValueError(f"trainer.backend must be torch for this model, got {spec.trainer.backend}: {why}")
    if not spec.only_evaluates and spec.trainer.lora_rank:
        raise ValueError(f"trainer.lora_rank must be 0 for this model, got {spec.trainer.lora_rank}: {why}")


if __name__ == "__main__":
    sys.exit(main())
