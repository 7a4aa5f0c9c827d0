"""The committed demo model loads like any other, round-trips its texts exactly, and can be rebuilt."""

import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from engine.environments.port import Turn
from engine.environments.running_sums import MAX_TERMS, MIN_TERMS, RunningSums, answer_text, prompt_text, running_sums
from engine.models.make_demo import Pretraining, pretrain, save_demo

FOLDER = Path(__file__).parents[3] / "engine" / "models" / "demo"
TINY = Pretraining(right_steps=2, mixture_steps=1, batch_tokens=256)
many_terms = st.lists(st.integers(1, 9), min_size=MIN_TERMS, max_size=MAX_TERMS)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """A seed is reproducible on one thread only; and a model this small is slower on several."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(FOLDER)


@settings(deadline=None)
@given(terms=many_terms)
def test_prompt_and_answer_survive_the_tokenizer_exactly(tokenizer: Any, terms: list[int]) -> None:
    prompt, answer = prompt_text(terms), answer_text(running_sums(terms))
    for text in (prompt, answer, prompt + answer):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert tokenizer.unk_token_id not in ids
    assert tokenizer.encode(prompt) + tokenizer.encode(answer) == tokenizer.encode(prompt + answer)


def test_an_answer_costs_one_token_a_step_and_one_to_end(tokenizer: Any, model: Any) -> None:
    ids = tokenizer.encode(answer_text([3, 11, 16]))
    assert len(ids) == 4
    assert ids[-1] == tokenizer.eos_token_id == model.config.eos_token_id == model.generation_config.eos_token_id


def test_text_it_does_not_know_is_unknown_and_no_error(tokenizer: Any) -> None:
    assert tokenizer.unk_token_id in tokenizer.encode("hello")


def test_it_is_small(model: Any) -> None:
    assert 100_000 <= model.num_parameters() <= 500_000
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) <= 4 * 2**20


def test_the_longest_prompt_and_the_longest_answer_fit(tokenizer: Any, model: Any) -> None:
    recipe = json.loads((FOLDER / "recipe.json").read_text())
    longest = [9] * MAX_TERMS
    assert len(tokenizer.encode(answer_text(running_sums(longest)))) <= recipe["max_new_tokens"]
    num_tokens = len(tokenizer.encode(prompt_text(longest))) + recipe["max_new_tokens"]
    assert num_tokens <= model.config.max_position_embeddings


def test_at_first_it_is_sometimes_right_and_mostly_not(tokenizer: Any, model: Any) -> None:
    """A group of samples that are all wrong, or all right, gives no gradient.

    Only one answer is right, so its probability is the expected reward, without sampling noise.
    """
    environment = RunningSums(seed=0)
    chances: list[float] = []
    for ordinal in range(128):
        prompt = environment.prompt("held_out", ordinal)
        answer = answer_text(running_sums([int(term) for term in str(prompt.facts["terms"]).split()]))
        prompt_ids, answer_ids = tokenizer.encode(prompt.text), tokenizer.encode(answer)
        with torch.inference_mode():
            logits = model(torch.tensor([prompt_ids + answer_ids])).logits[0, len(prompt_ids) - 1 : -1]
        chances.append(math.exp(logits.log_softmax(-1)[range(len(answer_ids)), answer_ids].sum().item()))
    assert 0.15 <= sum(chances) / len(chances) <= 0.35


def test_greedy_samples_earn_reward_end_token_cut_or_not(tokenizer: Any, model: Any) -> None:
    environment = RunningSums(seed=0, median_terms=5, sigma=0.0)
    prompts = [environment.prompt("held_out", ordinal) for ordinal in range(16)]
    inputs = tokenizer([prompt.text for prompt in prompts], return_tensors="pt", padding=True)
    samples = model.generate(**inputs, do_sample=False, max_new_tokens=12)[:, inputs["input_ids"].shape[1] :]
    for cut in (False, True):
        answers = [text.replace("<pad>", "") for text in tokenizer.batch_decode(samples, skip_special_tokens=cut)]
        assert all(answer.endswith(".") != cut for answer in answers)
        rewards = [environment.respond(p, [Turn(text=a)]).reward for p, a in zip(prompts, answers, strict=True)]
        assert sum(rewards) >= len(prompts) / 2


def digest(model: Any) -> str:
    state = sorted(model.state_dict().items())
    return hashlib.sha256(b"".join(tensor.numpy().tobytes() for _, tensor in state)).hexdigest()


def test_same_seed_gives_same_weights_other_seed_others(tmp_path: Path) -> None:
    first, again, other = (pretrain(seed, TINY, report=lambda _: None) for seed in (0, 0, 1))
    assert digest(first) == digest(again) != digest(other)
    save_demo(first, tmp_path)
    assert digest(AutoModelForCausalLM.from_pretrained(tmp_path)) == digest(first)
    assert {file.name for file in tmp_path.iterdir()} <= {file.name for file in FOLDER.iterdir()}
