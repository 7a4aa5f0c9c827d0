"""Trained samples per second of this engine and of TRL's GRPOTrainer: same model, task, groups and number of samples,
the same cores, one after the other, in turns.

A sample counts when an optimizer step has consumed it. Loading and the first steps are not counted. Each run gives
one figure; TRL may use every core, this engine's processes take one thread each.
"""

import argparse
import subprocess
import sys
import tempfile
from typing import Any, Final

from engine.bench.report import Report, Row, Spread, in_turns
from engine.bench.runs import own_ray, run_job
from engine.spec.job import JobSpec
from engine.spec.recipes import RECIPES

PROMPTS: Final = 16
GROUP: Final = 8
NEW_TOKENS: Final = 80


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, default=6, help=f"counted steps of {PROMPTS * GROUP} samples a run")
    parser.add_argument("--warm-up", type=int, default=2, help="steps before, not counted")
    parser.add_argument("--repeats", type=int, default=5)


def measure(arguments: argparse.Namespace) -> Report:
    with own_ray():
        samples = in_turns(
            {
                "this engine": lambda: engine_samples_per_s(arguments.steps, arguments.warm_up),
                "TRL GRPOTrainer": lambda: peer_samples_per_s(arguments.steps, arguments.warm_up),
            },
            repeats=arguments.repeats,
        )
    baseline = Spread.of(samples["TRL GRPOTrainer"]).median
    rows: list[Row] = [
        {
            "system": name,
            **Spread.of(values).columns("samples_per_s"),
            "times_trl": round(Spread.of(values).median / baseline, 2),
        }
        for name, values in samples.items()
    ]
    remark = f"running sums, demo model, {PROMPTS} prompts x {GROUP}, {arguments.steps} counted steps a run"
    return Report(bench="peer", rows=rows, remarks=[remark])


def engine_samples_per_s(steps: int, warm_up: int) -> float:
    # More steps than are counted: the last ones have no next batch to prepare, which would flatter.
    total = warm_up + steps + 2
    spec = JobSpec.model_validate(
        {
            "name": "peer",
            "training": {"steps": total, "prompts_per_step": PROMPTS, "checkpoint_every": total},
            "algorithm": {"group_size": GROUP},
            # One slot: answers are so short that draining costs less than two half batches.
            "rollout": {"replicas": 1, "max_batch": PROMPTS * GROUP, "max_new_tokens": NEW_TOKENS, "weight_slots": 1},
            "evaluation": {"prompts": 1},
        }
    )
    [(seconds, _)] = run_job(spec).windows(warm_up=warm_up, steps=steps)[:1]
    return steps * PROMPTS * GROUP / seconds


def peer_samples_per_s(steps: int, warm_up: int) -> float:
    command = [sys.executable, "-m", "engine.bench.peer", str(steps), str(warm_up)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"TRL failed:\n{done.stderr[-2_000:]}")
    return float(done.stdout.splitlines()[-1])


def train_with_trl(steps: int, warm_up: int) -> float:
    """Samples per second, in this process."""
    import time

    from datasets import Dataset
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    from engine.environments.port import Turn, Verdict
    from engine.environments.registry import make_environment
    from engine.models.loading import DEMO_FOLDER
    from engine.models.tokenizer import Tokenizer
    from engine.spec.job import EnvironmentSpec

    environment = make_environment(EnvironmentSpec(), seed=0, data_folder=None)
    own_tokenizer = Tokenizer.from_folder(DEMO_FOLDER)
    asked = [environment.prompt("train", ordinal) for ordinal in range((steps + warm_up) * PROMPTS)]
    by_text = {prompt.text: prompt for prompt in asked}
    end = own_tokenizer.eos_id
    make_tokenizer: Any = PreTrainedTokenizerFast
    tokenizer = make_tokenizer(tokenizer_file=str(DEMO_FOLDER / "tokenizer.json"), padding_side="left")
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(end)
    tokenizer.pad_token = tokenizer.eos_token
    ended_at: list[float] = []

    class Watch(TrainerCallback):
        def on_step_end(self, *_: object, **__: object) -> None:
            ended_at.append(time.perf_counter())

    def reward(prompts: list[str], completion_ids: list[list[int]], **_: object) -> list[float | None]:
        verdicts: list[float | None] = []
        for prompt, ids in zip(prompts, completion_ids, strict=True):
            verdict = environment.respond(by_text[prompt], [Turn(text=own_tokenizer.decode(ids))])
            verdicts.append(verdict.reward if isinstance(verdict, Verdict) else 0.0)
        return verdicts

    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(DEMO_FOLDER),
            reward_funcs=reward,
            args=GRPOConfig(
                output_dir=folder,
                per_device_train_batch_size=PROMPTS * GROUP,
                num_generations=GROUP,
                max_completion_length=NEW_TOKENS,
                max_steps=steps + warm_up,
                learning_rate=3e-4,
                beta=0.0,
                epsilon=RECIPES["grpo"].clip_low,
                epsilon_high=RECIPES["grpo"].clip_high,
                temperature=1.0,
                use_cpu=True,
                bf16=False,
                report_to=[],
                save_strategy="no",
                logging_strategy="no",
                disable_tqdm=True,
                activation_checkpointing=False,
                shuffle_dataset=False,
            ),
            train_dataset=Dataset.from_list([{"prompt": prompt.text} for prompt in asked]),
            processing_class=tokenizer,
            callbacks=[Watch()],
        )
        trainer.train()
    return steps * PROMPTS * GROUP / (ended_at[warm_up + steps - 1] - ended_at[warm_up - 1])


if __name__ == "__main__":
    sys.stdout.write(f"{train_with_trl(int(sys.argv[1]), int(sys.argv[2]))}\n")
