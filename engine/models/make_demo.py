"""Make the demo model from a seed: python -m engine.models.make_demo --out DIR --seed 0

A Llama of 200,000 parameters is pretrained on running sums in two stages:
1. correct answers only, from short prompts to long ones, to teach the procedure (reinforcement learning cannot discover
   it in minutes);
2. a mixture of correct answers and three bad habits (skip a term, slip by one, give up early), so that the model *can*
   solve a prompt but mostly does not. The demo's reinforcement learning closes that gap.

Invariants:
- the same seed on the same machine and library versions gives the same bytes (one thread, one generator);
- no held-out prompt of running_sums, whatever its seed, is ever trained on.
"""

import argparse
import logging
import math
import random
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import torch
from tokenizers import Tokenizer
from torch.nn import functional
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from engine.environments.running_sums import (
    FULL_STOP,
    MAX_TERMS,
    MIN_TERMS,
    MODULUS,
    answer_text,
    prompt_text,
    running_sums,
    split_of,
)
from engine.models.demo_tokenizer import PAD, build_tokenizer, save_tokenizer, vocabulary

LOG: Final = logging.getLogger(__name__)
MAX_LENGTH: Final = 256  # 65 prompt tokens and 65 answer tokens at most, and room for wrong, longer answers
IGNORED: Final = -100  # cross_entropy's mark for "no target"
REPORT_EVERY: Final = 200
POOL: Final = 8  # batches drawn together and sorted by length, which saves padding


@dataclass(frozen=True, slots=True, kw_only=True)
class Pretraining:
    """Settings of the pretraining. The defaults made engine/models/demo."""

    right_steps: int = 6500
    mixture_steps: int = 1800
    batch_tokens: int = 1024  # small batches, many steps: learns longer sums in equal time than with 2,048
    learning_rate: float = 5e-3
    warmup_steps: int = 100
    first_longest: int = 8
    """Prompts start at this many terms at most; the bound grows geometrically to MAX_TERMS."""
    growth_share: float = 0.8
    """The share of the first stage in which the bound grows. Without growth the model learns only shorter sums."""
    share_right: float = 0.45
    """The share of correct answers in the mixture; the three bad habits share the rest equally."""

    @property
    def steps(self) -> int:
        return self.right_steps + self.mixture_steps

    def longest_at(self, step: int) -> int:
        grown = min(1.0, step / (self.growth_share * self.right_steps))
        return round(self.first_longest * math.pow(MAX_TERMS / self.first_longest, grown))

    def learning_rate_at(self, step: int) -> float:
        """Linear warm-up, then half a cosine over both stages."""
        warm = min(1.0, (step + 1) / self.warmup_steps)
        return self.learning_rate * warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / self.steps)))


def demo_config() -> LlamaConfig:
    words = vocabulary()
    return LlamaConfig(
        vocab_size=len(words),
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,  # the smallest head that vLLM runs on a CPU
        max_position_embeddings=MAX_LENGTH,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},  # fits 130 positions
        initializer_range=0.06,  # 0.02 suits a hundred times the width
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=words[FULL_STOP],
        pad_token_id=words[PAD],
    )


# Worked examples ------------------------------------------------------------------------------------------------


def draw_terms(rng: random.Random, longest: int) -> list[int]:
    """On average longer than the environment's prompts, since long sums are the hard ones."""
    while True:
        num_terms = max(MIN_TERMS, min(MAX_TERMS, round(9 * rng.lognormvariate(0.0, 1.0))))
        if num_terms > longest:
            num_terms = rng.randint(MIN_TERMS, longest)
        terms = [rng.randint(1, 9) for _ in range(num_terms)]
        if split_of(terms) == "train":
            return terms


def right(rng: random.Random, terms: Sequence[int]) -> list[int]:
    return running_sums(terms)


def skip_a_term(rng: random.Random, terms: Sequence[int]) -> list[int]:
    skipped = rng.randrange(1, len(terms))
    return running_sums([term for index, term in enumerate(terms) if index != skipped])


def slip_by_one(rng: random.Random, terms: Sequence[int]) -> list[int]:
    slipped = rng.randrange(1, len(terms))
    shift = rng.choice((-1, 1))
    added = [term + shift if index == slipped else term for index, term in enumerate(terms)]
    return [total % MODULUS for total in accumulate(added)]


def give_up_early(rng: random.Random, terms: Sequence[int]) -> list[int]:
    return running_sums(terms[: rng.randrange(1, len(terms))])


Habit = Callable[[random.Random, Sequence[int]], list[int]]
BAD_HABITS: Final[tuple[Habit, ...]] = (skip_a_term, slip_by_one, give_up_early)


def draw_habit(rng: random.Random, share_right: float) -> Habit:
    return right if rng.random() < share_right else rng.choice(BAD_HABITS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    token_ids: list[int]
    prompt_length: int


def draw_example(rng: random.Random, tokenizer: Tokenizer, *, share_right: float, longest: int) -> Example:
    terms = draw_terms(rng, longest)
    prompt_ids = tokenizer.encode(prompt_text(terms)).ids
    answer_ids = tokenizer.encode(answer_text(draw_habit(rng, share_right)(rng, terms))).ids
    return Example(token_ids=prompt_ids + answer_ids, prompt_length=len(prompt_ids))


def batches(rng: random.Random, tokenizer: Tokenizer, settings: Pretraining) -> Iterator[list[Example]]:
    """One batch per step, of about `batch_tokens` tokens including padding, with examples of similar length."""
    pool: list[list[Example]] = []
    for step in range(settings.steps):
        if step in (0, settings.right_steps):
            pool = []
        if not pool:
            share_right = 1.0 if step < settings.right_steps else settings.share_right
            longest = settings.longest_at(step)
            drawn = [
                draw_example(rng, tokenizer, share_right=share_right, longest=longest)
                for _ in range(POOL * settings.batch_tokens // 30)
            ]
            pool = _cut_by_length(drawn, settings.batch_tokens)
            rng.shuffle(pool)
        yield pool.pop()


def _cut_by_length(examples: Sequence[Example], batch_tokens: int) -> list[list[Example]]:
    pool: list[list[Example]] = [[]]
    for example in sorted(examples, key=lambda example: len(example.token_ids)):
        if pool[-1] and (len(pool[-1]) + 1) * len(example.token_ids) > batch_tokens:
            pool.append([])
        pool[-1].append(example)
    return pool


# Training -------------------------------------------------------------------------------------------------------


def answer_loss(model: LlamaForCausalLM, batch: Sequence[Example], pad_id: int) -> torch.Tensor:
    """Mean cross-entropy of the answers' tokens. Padding is on the right, which causal attention does not see."""
    width = max(len(example.token_ids) for example in batch)
    inputs = torch.full((len(batch), width), pad_id)
    targets = torch.full((len(batch), width), IGNORED)
    for row, example in enumerate(batch):
        ids = torch.tensor(example.token_ids)
        inputs[row, : len(ids)] = ids
        targets[row, example.prompt_length : len(ids)] = ids[example.prompt_length :]
    logits = model(input_ids=inputs, use_cache=False).logits[:, :-1]
    return functional.cross_entropy(logits.flatten(0, 1), targets[:, 1:].flatten(), ignore_index=IGNORED)


def pretrain(seed: int, settings: Pretraining, report: Callable[[str], None]) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    rng = random.Random(seed)
    model = LlamaForCausalLM(demo_config())
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    recent: deque[float] = deque(maxlen=REPORT_EVERY)
    for step, batch in enumerate(batches(rng, build_tokenizer(), settings)):
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate_at(step)
        loss = answer_loss(model, batch, vocabulary()[PAD])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        recent.append(loss.item())
        if (step + 1) % REPORT_EVERY == 0 or step + 1 == settings.steps:
            stage = "right" if step < settings.right_steps else "mixture"
            mean_loss = sum(recent) / len(recent)
            report(f"stage={stage} step={step + 1}/{settings.steps} loss={mean_loss:.4f}")
    return model


def save_demo(model: LlamaForCausalLM, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    config: Any = model.config
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        do_sample=True, temperature=1.0, eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id
    )
    config.rope_theta = config.rope_parameters["rope_theta"]  # for readers older than rope_parameters
    model.save_pretrained(folder)
    save_tokenizer(folder, max_length=MAX_LENGTH)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m engine.models.make_demo", description="Make the demo model.")
    parser.add_argument("--out", type=Path, required=True, help="folder for weights and tokenizer")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    torch.set_num_threads(1)  # a fixed order of additions, so that a seed gives the same weights
    started = time.monotonic()
    model = pretrain(
        options.seed,
        Pretraining(),
        report=lambda line: LOG.info("%s elapsed_s=%.0f", line, time.monotonic() - started),
    )
    save_demo(model, options.out)
    LOG.info("out=%s parameters=%d elapsed_s=%.0f", options.out, model.num_parameters(), time.monotonic() - started)


if __name__ == "__main__":
    main()
