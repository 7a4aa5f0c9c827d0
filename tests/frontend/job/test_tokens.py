"""Tokens and messages on the page: each once and in order, and a legend with meaning and count of each colour."""

from typing import Any

import pytest

from backend.pages.trajectories.tokens import COLOURINGS, GAP, LIKELY, VERSION, Tokens, tokens_of
from backend.pages.trajectories.turns import turns_of
from engine.spec.facts import TokenTrace, TrajectorySample, Turn

TEXTS = ["a", " b", "!", " c", ""]


def trace(**changes: Any) -> TokenTrace:
    told: dict[str, Any] = {
        "token_ids": [1, 2, 3, 4, 5],
        "logprobs": [-0.01, -0.5, 0.0, -6.0, -1.5],
        "versions": [7, 7, 7, 8, 8],
        "written": [True, True, False, True, True],
        "texts": TEXTS,
        "trainer_logprobs": [-0.01, -0.3, 0.0, -6.5, -1.5],
    }
    return TokenTrace.model_validate(told | changes)


def shown(**changes: Any) -> Tokens:
    tokens = tokens_of(trace(**changes), 0.5)
    assert tokens is not None
    return tokens


def legend(tokens: Tokens, slug: str) -> dict[str, int]:
    return {key.look: key.num_tokens for each in tokens.legends if each.colouring.slug == slug for key in each.keys}


def test_token_colours_match_numbers_except_environment_text() -> None:
    assert [each.looks for each in shown().shown] == [
        "l0 a3 g2 v0",
        "l1 a3 g4 v0",
        "env",
        "l4 a3 g0 v1",
        "l2 a3 g2 v1",
    ]


def test_every_legend_counts_all_that_the_model_wrote() -> None:
    tokens = shown()
    assert all(sum(legend(tokens, each.slug).values()) == tokens.num_written == 4 for each in COLOURINGS)
    assert legend(tokens, LIKELY.slug) == {"l0": 1, "l1": 1, "l2": 1, "l3": 0, "l4": 1}
    assert legend(tokens, VERSION.slug) == {"v0": 2, "v1": 2}
    assert tokens.widest is not None and (tokens.widest.at, round(tokens.widest_gap, 3)) == (3, -0.5)


def test_what_the_trainer_never_read_has_no_gap() -> None:
    tokens = shown(trainer_logprobs=[])
    assert legend(tokens, GAP.slug) == {} and tokens.widest is None and tokens.numbers["gaps"] == []
    assert tokens.shown[0].looks == "l0 a3 v0"


def test_more_versions_than_colours_show_their_numbers() -> None:
    texts = ["x"] * 8
    tokens = shown(
        token_ids=[1] * 8, logprobs=[-1.0] * 8, versions=range(8), written=[True] * 8, texts=texts, trainer_logprobs=[]
    )
    keys = next(each.keys for each in tokens.legends if each.colouring is VERSION)
    assert [(key.label, key.num_tokens) for key in keys] == [(f"version {at}", 1) for at in range(8)]


@pytest.mark.parametrize("short", ["logprobs", "versions", "written", "texts"])
def test_lists_of_several_lengths_are_drawn_as_far_as_all_go(short: str) -> None:
    tokens = shown(**{short: getattr(trace(), short)[:3]})
    assert [each.text for each in tokens.shown] == TEXTS[:3]


def test_there_are_no_tokens_without_their_texts() -> None:
    assert tokens_of(None, 0.5) is None and tokens_of(trace(texts=[]), 0.5) is None


def sample(*turns: dict[str, Any], response: str = "a b! c") -> TrajectorySample:
    told = [Turn.model_validate({"author": "model", "num_tokens": 1} | each) for each in turns]
    return TrajectorySample(
        prompt_ordinal=1, sample=0, version=7, staleness=0, num_tokens=5, reward=1.0, advantage=0.5,
        prompt="?", response=response, turns=told,
    )  # fmt: skip


def test_every_token_is_in_exactly_one_message() -> None:
    tokens = shown().shown
    for firsts in ([1, 3], [0, 2], [0, 0], [0, 9], [2, 1], [0, 4, 2]):
        turns = turns_of(sample(*({"text": "x", "first_token": first} for first in firsts)), tokens)
        ats = [each.at for turn in turns for each in turn.tokens]
        assert ats == sorted(set(ats)) and (ats == [0, 1, 2, 3, 4]), firsts


def test_a_response_without_turns_is_one_message_by_the_model() -> None:
    [turn] = turns_of(sample())
    assert (turn.heading, turn.rest, list(turn.tokens)) == ("Model", "a b! c", [])


def test_what_is_behind_the_kept_tokens_is_told_by_its_text() -> None:
    tokens = shown(texts=TEXTS[:2]).shown
    [turn] = turns_of(sample(), tokens)
    assert "".join(each.text for each in turn.tokens) + turn.rest == "a b! c" and not turn.is_text_apart
    [turn] = turns_of(sample(response="quite another text"), tokens)
    assert turn.is_text_apart and turn.rest == "quite another text"


def test_a_message_says_who_wrote_it_and_with_which_tool() -> None:
    turns = turns_of(sample(
        {"text": "1", "first_token": 0, "tool": "add"}, {"text": "2", "first_token": 1, "author": "environment"},
        {"text": "3", "first_token": 2, "author": "environment", "tool": "add"},
    ))  # fmt: skip
    assert [each.heading for each in turns] == ["Model, calling add", "Environment", "Answer of add"]
