"""A run of TRL's GRPOTrainer, in a process of its own: what it leaves behind ends with it."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tests.bench.engine.peers.split import Measured, StepMs
from tests.bench.engine.peers.tasks import BATCH, GROUP, PROMPTS, TASKS, Task


def run_trl(task: str, *, steps: int, warm_up: int, threads: int, at_once: bool = False) -> Measured:
    """`at_once`: the waits of a batch's tools side by side, in a loop that is not TRL's. `threads`: of torch."""
    command = [sys.executable, "-m", "tests.bench.engine.peers.trl", task, str(steps), str(warm_up), str(int(at_once))]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        raise RuntimeError(f"TRL failed:\n{done.stderr[-2_000:]}")
    result = json.loads(done.stdout.splitlines()[-1])
    return Measured(samples_per_s=result["samples_per_s"], of_step=StepMs(**result["of_step"]))


def _train(name: str, steps: int, warm_up: int, *, at_once: bool) -> Measured:
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, TrainerCallback
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    from engine.environments.registry import make_environment
    from engine.models.loading import DEMO_FOLDER
    from engine.spec.job import EnvironmentSpec

    task = TASKS[name]
    environment: Any = make_environment(EnvironmentSpec.model_validate(task.environment), seed=0, data_folder=None)
    prompts = [environment.prompt("train", ordinal) for ordinal in range((steps + warm_up) * PROMPTS)]
    clock = StepClock()

    class Watch(TrainerCallback):
        def on_step_end(self, *_: object, **__: object) -> None:
            clock.end_step()

    class Clocked(GRPOTrainer):
        def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
            with clock.generating:
                return super()._generate_single_turn(*args, **kwargs)  # type: ignore[no-untyped-call]

        def _generate(self, *args: Any, **kwargs: Any) -> Any:
            with clock.rolling_out:
                return super()._generate(*args, **kwargs)

    with tempfile.TemporaryDirectory() as folder:
        trainer = Clocked(
            model=AutoModelForCausalLM.from_pretrained(DEMO_FOLDER),
            args=GRPOConfig(**_settings(task, folder, steps + warm_up)),
            train_dataset=Dataset.from_list([_row(task, prompt, at_once=at_once) for prompt in prompts]),
            callbacks=[Watch()],
            **_wiring(task, environment, prompts, at_once=at_once),
        )
        trainer.train()
    return clock.measured(steps=steps, warm_up=warm_up)


def _settings(task: Task, folder: str, steps: int) -> dict[str, Any]:
    from engine.spec.recipes import RECIPES

    return {
        "output_dir": folder,
        "per_device_train_batch_size": BATCH,
        "num_generations": GROUP,
        "max_completion_length": task.new_tokens,
        "max_steps": steps,
        "learning_rate": 3e-4,
        "beta": 0.0,
        "epsilon": RECIPES["grpo"].clip_low,
        "epsilon_high": RECIPES["grpo"].clip_high,
        "temperature": 1.0,
        "use_cpu": True,
        "bf16": False,
        "report_to": [],
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "activation_checkpointing": False,
        "shuffle_dataset": False,
        "max_tool_calling_iterations": task.num_turns - 1 or None,
    }


def _row(task: Task, prompt: Any, *, at_once: bool) -> dict[str, Any]:
    is_chat = task.num_turns > 1 and not at_once  # TRL's own loop wants messages
    return {"prompt": [{"role": "user", "content": prompt.text}] if is_chat else prompt.text, "ordinal": prompt.ordinal}


def _wiring(task: Task, environment: Any, prompts: Sequence[Any], *, at_once: bool) -> dict[str, Any]:
    """The tokenizer, the rewards, and the way of the turns."""
    from engine.environments.port import Turn, Verdict
    from engine.models.loading import DEMO_FOLDER
    from engine.models.tokenizer import Tokenizer
    from tests.bench.engine.peers import trl_tools

    own = Tokenizer.from_folder(DEMO_FOLDER)
    make_tokenizer: Any = trl_tools.ToolTokenizer
    tokenizer = make_tokenizer(tokenizer_file=str(DEMO_FOLDER / "tokenizer.json"), padding_side="left")
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(own.eos_id)
    tokenizer.pad_token = tokenizer.eos_token
    if task.num_turns == 1:

        def reward(ordinal: list[int], completion_ids: list[list[int]], **_: object) -> list[float | None]:
            said = zip(ordinal, completion_ids, strict=True)
            verdicts = [environment.respond(prompts[at], [Turn(text=own.decode(ids))]) for at, ids in said]
            return [verdict.reward if isinstance(verdict, Verdict) else 0.0 for verdict in verdicts]

        return {"reward_funcs": reward, "processing_class": tokenizer}

    def reward_turns(ordinal: list[int], completions: list[Any], said: Any = None, **_: object) -> list[float]:
        texts = said or [[each["content"] for each in its if each["role"] == "assistant"] for its in completions]
        return trl_tools.rewards_of(environment, ordinal, texts)

    common = {"reward_funcs": reward_turns, "processing_class": tokenizer}
    if at_once:
        turns = trl_tools.TurnsAtOnce(environment, tokenizer, max_tokens=task.new_tokens)
        return {**common, "rollout_func": turns}
    tokenizer.chat_template, tokenizer.response_template = trl_tools.CHAT_TEMPLATE, trl_tools.RESPONSE_TEMPLATE
    return {**common, "environment_factory": trl_tools.make_tools(environment)}


class Stopwatch:
    def __init__(self) -> None:
        self.seconds = 0.0
        self._since = 0.0

    def __enter__(self) -> None:
        self._since = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._since


class StepClock:
    """A rollout is generation and waiting for tools; the rest of a step is training."""

    def __init__(self) -> None:
        self.generating, self.rolling_out = Stopwatch(), Stopwatch()
        self._ends: list[tuple[float, float, float, float]] = []

    def end_step(self) -> None:
        now = time.perf_counter(), time.process_time()
        self._ends.append((*now, self.generating.seconds, self.rolling_out.seconds))

    def measured(self, *, steps: int, warm_up: int) -> Measured:
        before, after = self._ends[warm_up - 1], self._ends[warm_up + steps - 1]
        step_ms, cpu_ms, generating_ms, out_ms = (
            1e3 * (end - start) / steps for start, end in zip(before, after, strict=True)
        )
        of_step = StepMs(
            step_ms=step_ms,
            generating_ms=generating_ms,
            training_ms=step_ms - out_ms,
            handover_ms=0.0,
            rollout_idle_ms=out_ms - generating_ms,
            trainer_idle_ms=out_ms,
            cpu_ms=cpu_ms,
        )
        return Measured(samples_per_s=1e3 * BATCH / step_ms, of_step=of_step)


if __name__ == "__main__":
    _, its_task, its_steps, its_warm_up, is_at_once = sys.argv
    measured = _train(its_task, int(its_steps), int(its_warm_up), at_once=is_at_once == "1")
    sys.stdout.write(json.dumps(asdict(measured)) + "\n")
