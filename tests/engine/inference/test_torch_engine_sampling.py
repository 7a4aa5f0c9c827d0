"""Draws follow the requested distribution, log-probs the whole one; stop strings are found in time."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import decoders, models, pre_tokenizers

from engine.inference.port import SamplingParams
from engine.inference.sampling import RowSampling, sample_tokens, uniforms
from engine.inference.stop import StopWatcher
from engine.models.tokenizer import Tokenizer
from tests.engine.inference.rollout_engine_conformance import cut_distribution

LOGITS = torch.tensor([1.0, 0.0, -1.0, float("-inf"), 2.0, -3.0])
NUM_DRAWS = 20_000


def asked(*, temperature: float, top_p: float = 1.0, top_k: int = 0, min_p: float = 0.0) -> SamplingParams:
    return SamplingParams(max_new_tokens=1, seed=0, temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p)


@pytest.mark.parametrize(
    "cut",
    [{}, {"top_k": 2}, {"top_k": 1}, {"top_p": 0.9}, {"top_p": 1e-9}, {"min_p": 0.3}, {"top_k": 3, "top_p": 0.8}],
    ids=str,
)
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_distribution(temperature: float, cut: dict[str, float]) -> None:
    uniforms_B = uniforms(torch.arange(NUM_DRAWS), torch.full((NUM_DRAWS,), 17))
    sampling = RowSampling.of([asked(temperature=temperature, **cut)] * NUM_DRAWS, "cpu")  # type: ignore[arg-type]
    tokens_B, logprobs_B = sample_tokens(LOGITS.expand(NUM_DRAWS, -1), sampling, uniforms_B)
    expected_V = cut_distribution(LOGITS, temperature=temperature, **cut)  # type: ignore[arg-type]
    counts_V = torch.bincount(tokens_B, minlength=6)
    assert not counts_V[expected_V == 0].any()
    errors_V = (counts_V / NUM_DRAWS - expected_V).abs() / (expected_V * (1 - expected_V) / NUM_DRAWS).sqrt()
    assert errors_V.nan_to_num(0.0, posinf=0.0).max() < 4.5
    torch.testing.assert_close(logprobs_B, torch.log_softmax(LOGITS / temperature, -1)[tokens_B])


def test_each_row_is_drawn_by_its_own_parameters() -> None:
    rows = [asked(temperature=0.0), asked(temperature=2.0), asked(temperature=2.0, top_k=1), asked(temperature=0.0)]
    tokens_B, logprobs_B = sample_tokens(LOGITS.expand(4, -1), RowSampling.of(rows, "cpu"), torch.full((4,), 0.02))
    assert tokens_B.tolist() == [4, 0, 4, 4]
    own, at_two = torch.log_softmax(LOGITS, -1), torch.log_softmax(LOGITS / 2, -1)
    assert logprobs_B.tolist() == pytest.approx([float(each) for each in (own[4], at_two[0], at_two[4], own[4])])


def test_uniforms_are_even_and_uncorrelated() -> None:
    seeds, positions = torch.arange(300).repeat_interleave(300), torch.arange(300).repeat(300)
    grid = uniforms(seeds, positions).view(300, 300)
    assert grid.min() >= 0.0 and grid.max() < 1.0
    assert abs(grid.mean().item() - 0.5) < 0.004
    assert abs(grid.var().item() - 1 / 12) < 0.002
    for neighbour in (grid.roll(1, 0), grid.roll(1, 1), grid.T):
        assert abs(torch.corrcoef(torch.stack((grid.flatten(), neighbour.flatten())))[0, 1].item()) < 0.015


def test_uniforms_drawn_ahead_are_those_drawn_one_by_one() -> None:
    seeds_B = torch.tensor([3, -1, 2**62])
    ahead_BJ = uniforms(seeds_B.unsqueeze(1), 7 + torch.arange(5))
    for step in range(5):
        assert torch.equal(ahead_BJ[:, step], uniforms(seeds_B, torch.full((3,), 7 + step)))


# Stop strings --------------------------------------------------------------------------------------------------------

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())


def bytewise() -> Tokenizer:
    """A token a byte, like the smallest tokens of GPT-2, Llama 3 and Qwen: a character takes up to four of them."""
    raw = RawTokenizer(models.WordLevel({letter: index for index, letter in enumerate(BYTES)}, unk_token=BYTES[0]))
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False), pre_tokenizers.Split("", "isolated")]
    )
    raw.decoder = decoders.ByteLevel()
    return Tokenizer(raw, eos_ids=(9_999,))


def metaspaced() -> Tokenizer:
    """Like SentencePiece: a word's space is in its first token, and the text's first space is dropped."""
    words = ["▁", "▁a", "▁b", "a", "b", "ab", "▁ab", "c"]
    raw = RawTokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="▁"))
    raw.decoder = decoders.Metaspace()
    return Tokenizer(raw, eos_ids=(9_999,))


def first_completing(tokenizer: Tokenizer, stop: tuple[str, ...], ids: list[int]) -> int | None:
    """By definition: the shortest answer whose text contains a stop string."""
    return next((n for n in range(1, len(ids) + 1) if any(one in tokenizer.decode(ids[:n]) for one in stop)), None)


def found_by_watching(tokenizer: Tokenizer, stop: tuple[str, ...], ids: list[int]) -> int | None:
    watcher = StopWatcher(tokenizer, stop)
    return next((n for n, token in enumerate(ids, start=1) if watcher.completes(token)), None)


@given(
    st.lists(st.integers(0, 7), max_size=30),
    st.lists(st.sampled_from(["a", "b", " a", "a b", "ab", "b  a", "bab", "cc", "a a a"]), min_size=1, max_size=3),
)
def test_a_stop_string_is_found_with_the_token_that_completes_it(ids: list[int], stop: list[str]) -> None:
    tokenizer = metaspaced()
    assert found_by_watching(tokenizer, tuple(stop), ids) == first_completing(tokenizer, tuple(stop), ids)


@given(st.text("aé→😀 ", max_size=12), st.sampled_from(["a", "é", "→a", "😀", "é→", " 😀 ", "aé→😀"]))
def test_characters_of_several_tokens_are_decoded_when_complete(text: str, stop: str) -> None:
    tokenizer = bytewise()
    ids = tokenizer.encode(text)
    assert len(ids) == len(text.encode())
    found = found_by_watching(tokenizer, (stop,), ids)
    at = text.find(stop)
    assert found == (None if at < 0 else len(text[: at + len(stop)].encode()))


def test_stop_string_after_undecodable_bytes_is_found() -> None:
    tokenizer = bytewise()
    never_whole = tokenizer.encode("é")[:1] * 100
    assert found_by_watching(tokenizer, ("stop",), [*never_whole, *tokenizer.encode("a stop.")]) == 106


def test_an_even_chance_is_never_certain() -> None:
    """The largest uniform must still be inside the distribution."""
    largest = torch.tensor([1.0 - 2.0**-40], dtype=torch.float64)
    for size in (2, 131, 151_936):
        tokens_B, logprobs_B = sample_tokens(
            torch.zeros(1, size), RowSampling.of([asked(temperature=1.0)], "cpu"), largest
        )
        assert tokens_B.item() == size - 1
        assert logprobs_B.item() == pytest.approx(-math.log(size), abs=1e-5)


@pytest.mark.parametrize("size", [1, 6, 128, 131, 1_000, 50_257])
def test_drawing_by_stretches_draws_the_same(size: int) -> None:
    """With cuts and without; a third of the vocabulary is impossible."""
    generator = torch.Generator().manual_seed(size)
    logits_BV = 4 * torch.randn(64, size, generator=generator)
    logits_BV[:, 1::3] = -math.inf
    uniforms_B = uniforms(torch.arange(64), torch.full((64,), 3))
    uniforms_B[:2] = torch.tensor([0.0, 1.0 - 2.0**-40], dtype=torch.float64)
    for cut in ({}, {"top_p": 0.9, "top_k": 40}):
        sampling = RowSampling.of([asked(temperature=1.3, **cut)] * 64, "cpu")  # type: ignore[arg-type]
        plain, by_stretches = (
            sample_tokens(logits_BV, sampling, uniforms_B, by_stretches=way) for way in (False, True)
        )
        assert torch.equal(plain[0], by_stretches[0]) and torch.equal(plain[1], by_stretches[1])


def test_draw_by_stretches_never_draws_zero_probability() -> None:
    """Where sums are rounded: masses from one to the smallest, in any order."""
    generator = torch.Generator().manual_seed(0)
    logits_BV = -60 * torch.rand(4_000, 300, generator=generator)
    logits_BV[:, 255:] = -math.inf
    logits_BV[:, 100:140] = -math.inf
    uniforms_B = torch.rand(4_000, generator=generator, dtype=torch.float64)
    uniforms_B[:1_000] = 1.0 - 2.0**-40
    sampling = RowSampling.of([asked(temperature=1.0)] * 4_000, "cpu")
    tokens_B, logprobs_B = sample_tokens(logits_BV, sampling, uniforms_B, by_stretches=True)
    assert logprobs_B.isfinite().all() and (tokens_B < 300).all()
