"""Make the demo model from a seed: python -m engine.models.make_demo --out DIR --seed 0

A Llama of a quarter of a million parameters learns running sums in two stages:
1. right work only, so that it has the procedure (reinforcement cannot invent it in minutes);
2. a mixture of right work and three bad habits (skip a term, slip by one, give up early), so that it *can* do it and
   mostly does not. That gap is what reinforcement closes in the demo.

Invariants:
- the same seed on the same machine and library versions gives the same bytes (one thread, one generator);
- no held-out prompt of running_sums, whatever its seed, is ever trained on.
"""

import argparse
import math
import random
import time
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
    MAX_TERMS,
    MIN_TERMS,
    MODULUS,
    answer_text,
    prompt_text,
    running_sums,
    split_of,
)
from engine.models.demo_tokenizer import FULL_STOP, PAD, build_tokenizer, save_tokenizer, vocabulary

MAX_LENGTH: Final = 256  # 65 prompt tokens and 65 answer tokens at most, and room to ramble
IGNORED: Final = -100  # cross_entropy's own mark for "no target here"
POOL: Final = 32  # batches drawn together and sorted by length, so that little is spent on padding


@dataclass(frozen=True, slots=True, kw_only=True)
class Schooling:
    """How the model is pre-trained. The defaults made engine/models/demo."""

    right_steps: int = 2600
    mixture_steps: int = 1400
    batch_tokens: int = 3072
    learning_rate: float = 3e-3
    warmup_steps: int = 100
    share_right: float = 0.4
    """In the mixture; the three bad habits share the rest equally."""


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
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=words[FULL_STOP],
        pad_token_id=words[PAD],
    )


# Worked examples ------------------------------------------------------------------------------------------------


def draw_terms(rng: random.Random) -> list[int]:
    """Longer than the environment's prompts on average: the long ones are the hard ones."""
    while True:
        num_terms = round(9 * rng.lognormvariate(0.0, 1.0))
        terms = [rng.randint(1, 9) for _ in range(min(max(num_terms, MIN_TERMS), MAX_TERMS))]
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


def draw_example(rng: random.Random, tokenizer: Tokenizer, share_right: float) -> Example:
    terms = draw_terms(rng)
    prompt_ids = tokenizer.encode(prompt_text(terms)).ids
    answer_ids = tokenizer.encode(answer_text(draw_habit(rng, share_right)(rng, terms))).ids
    return Example(token_ids=prompt_ids + answer_ids, prompt_length=len(prompt_ids))


def batches(rng: random.Random, tokenizer: Tokenizer, share_right: float, batch_tokens: int) -> Iterator[list[Example]]:
    """For ever: batches of about `batch_tokens` tokens, padding included, of examples of like length."""
    while True:
        batch: list[Example] = []
        pool: list[list[Example]] = []
        drawn = (draw_example(rng, tokenizer, share_right) for _ in range(POOL * batch_tokens // 30))
        for example in sorted(drawn, key=lambda example: len(example.token_ids)):
            if batch and (len(batch) + 1) * len(example.token_ids) > batch_tokens:
                pool.append(batch)
                batch = []
            batch.append(example)
        pool.append(batch)
        rng.shuffle(pool)
        yield from pool


# Training -------------------------------------------------------------------------------------------------------


def answer_loss(model: LlamaForCausalLM, batch: Sequence[Example], pad_id: int) -> torch.Tensor:
    """Mean cross-entropy of the answers' tokens. Padding is on the right, where causal attention never looks."""
    width = max(len(example.token_ids) for example in batch)
    inputs = torch.full((len(batch), width), pad_id)
    targets = torch.full((len(batch), width), IGNORED)
    for row, example in enumerate(batch):
        ids = torch.tensor(example.token_ids)
        inputs[row, : len(ids)] = ids
        targets[row, example.prompt_length : len(ids)] = ids[example.prompt_length :]
    logits = model(input_ids=inputs, use_cache=False).logits[:, :-1]
    return functional.cross_entropy(logits.flatten(0, 1), targets[:, 1:].flatten(), ignore_index=IGNORED)


def learning_rate_at(step: int, schooling: Schooling) -> float:
    """Linear warm-up, then half a cosine over both stages."""
    total = schooling.right_steps + schooling.mixture_steps
    warm = min(1.0, (step + 1) / schooling.warmup_steps)
    return schooling.learning_rate * warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / total)))


def pretrain(seed: int, schooling: Schooling, report: Callable[[str], None]) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    rng = random.Random(seed)
    tokenizer = build_tokenizer()
    model = LlamaForCausalLM(demo_config())
    optimizer = torch.optim.AdamW(model.parameters(), lr=schooling.learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    right_only = batches(rng, tokenizer, 1.0, schooling.batch_tokens)
    mixture = batches(rng, tokenizer, schooling.share_right, schooling.batch_tokens)
    total = schooling.right_steps + schooling.mixture_steps
    smoothed = float("nan")
    for step in range(total):
        batch = next(right_only if step < schooling.right_steps else mixture)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate_at(step, schooling)
        loss = answer_loss(model, batch, vocabulary()[PAD])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        smoothed = loss.item() if math.isnan(smoothed) else 0.98 * smoothed + 0.02 * loss.item()
        if (step + 1) % 100 == 0 or step + 1 == total:
            stage = "right" if step < schooling.right_steps else "mixture"
            report(f"stage={stage} step={step + 1}/{total} loss={smoothed:.4f}")
    return model


def save_demo(model: LlamaForCausalLM, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    config: Any = model.config
    model.generation_config = GenerationConfig(
        do_sample=True, temperature=1.0, eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id
    )
    model.save_pretrained(folder)
    save_tokenizer(folder, max_length=MAX_LENGTH)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m engine.models.make_demo", description="Make the demo model.")
    parser.add_argument("--out", type=Path, required=True, help="folder for weights and tokenizer")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # one thread adds in one order, so a seed gives the same weights
    started = time.monotonic()
    model = pretrain(
        options.seed,
        Schooling(),
        report=lambda line: print(f"{line} elapsed_s={time.monotonic() - started:.0f}", flush=True),
    )
    save_demo(model, options.out)
    print(f"out={options.out} parameters={model.num_parameters()} elapsed_s={time.monotonic() - started:.0f}")


if __name__ == "__main__":
    main()
