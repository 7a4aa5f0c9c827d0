"""The process that checks a job's model: reads the spec from standard input, and the data folder from its argument.

Invariant: exit status 0: the model may be built, with warnings as a JSON list on standard output; REFUSED: standard
output has the reason; any other status: the check itself failed.
"""

import json
import sys
from contextlib import redirect_stdout
from pathlib import Path

from engine.live.run.chat_check import check_chat
from engine.live.run.model_check import REFUSED, refuse_sharding
from engine.live.texts.model_texts import words_of
from engine.live.texts.text_process import TextsUnavailable
from engine.models.families.agreement import check_folder
from engine.models.loading import read_config, resolve_model
from engine.spec.job import JobSpec
from engine.training.ranks.sequence_parallel import refuse_heads


def main() -> int:
    spec = JobSpec.accepted(json.load(sys.stdin))
    try:
        with redirect_stdout(sys.stderr):  # output of libraries is not the answer
            warnings = refuse_model(spec, data_folder=Path(sys.argv[1]) if sys.argv[1:] else None)
    except ValueError as error:
        print(error)  # noqa: T201
        return REFUSED
    except (OSError, ImportError, TextsUnavailable, MemoryError):
        raise  # this host's fault, or of unknown cause
    except Exception as error:  # noqa: BLE001 - a file of the folder has another shape than its readers expect
        print(f"the model's files cannot be read: {type(error).__name__}: {error}")  # noqa: T201
        return REFUSED
    print(json.dumps(warnings))  # noqa: T201
    return 0


def refuse_model(spec: JobSpec, *, data_folder: Path | None = None) -> tuple[str, ...]:
    """Returns warnings. Raises `ValueError` if the model is refused."""
    folder = resolve_model(spec.model.source)
    config = check_folder(folder, words_of=words_of)
    warnings = check_chat(
        spec,
        folder,
        max_positions=config.max_positions,
        vocab_size=config.vocab_size,
        data_folder=data_folder,
    )
    refuse_sharding(spec, folder)
    if not spec.only_evaluates:
        refuse_heads(config, num_sharers=spec.trainer.sequence_parallel)
    if (why := _why_not_the_decoder(folder)) is not None:
        _refuse_decoder_only_settings(spec, why)
    return warnings


def _why_not_the_decoder(folder: Path) -> str | None:
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
