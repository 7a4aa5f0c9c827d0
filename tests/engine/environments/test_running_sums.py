"""The demo environment: prompts, rewards, and that no held-out prompt is trained on."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.environments.port import Environment, GraderError, Prompt, Split, Turn, Verdict
from engine.environments.registry import make_environment
from engine.environments.running_sums import (
    MAX_TERMS,
    MIN_TERMS,
    RunningSums,
    answer_text,
    grade,
    prompt_text,
    running_sums,
    split_of,
)
from engine.spec.job import EnvironmentSpec, ParamValue

ROOT = Path(__file__).parents[3]
TERMS = [3, 8, 5, 9]  # sums 3, 11, 16, 25
many_terms = st.lists(st.integers(1, 9), min_size=MIN_TERMS, max_size=MAX_TERMS)


def terms_of(prompt: Prompt) -> list[int]:
    return [int(term) for term in str(prompt.facts["terms"]).split()]


def in_fresh_process(code: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environ, capture_output=True, text=True)


def say(text: str) -> Verdict:
    return grade(TERMS, text)


def test_reads_well() -> None:
    assert prompt_text(TERMS) == "3 + 8 + 5 + 9 ="
    assert answer_text(running_sums(TERMS)) == " 3 → 11 → 16 → 25."


def test_a_prompt_is_the_same_in_every_environment_of_that_seed() -> None:
    first, again, other = (RunningSums(seed=seed) for seed in (7, 7, 8))
    assert [first.prompt("train", i) for i in range(50)] == [again.prompt("train", i) for i in range(50)]
    assert [first.prompt("train", i) for i in range(50)] != [other.prompt("train", i) for i in range(50)]


def test_prompt_does_not_depend_on_the_hash_seed() -> None:
    code = "from engine.environments import running_sums as it; print(it.RunningSums(seed=7).prompt('train', 3).text)"
    fresh = in_fresh_process(code, PYTHONHASHSEED="5")
    assert fresh.returncode == 0, fresh.stderr
    assert fresh.stdout.strip() == RunningSums(seed=7).prompt("train", 3).text


def test_train_and_held_out_share_no_prompt_even_across_seeds() -> None:
    train = {RunningSums(seed=1).prompt("train", i).text for i in range(3000)}
    held_out = {RunningSums(seed=2).prompt("held_out", i).text for i in range(3000)}
    assert not train & held_out


def test_every_length_has_prompts_in_both_splits() -> None:
    splits = {split_of([a, b]) for a in range(1, 10) for b in range(1, 10)}
    assert splits == {"train", "held_out"}


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_lengths_are_heavy_tailed(split: Split) -> None:
    environment = RunningSums(seed=0)
    lengths = sorted(len(terms_of(environment.prompt(split, i))) + 1 for i in range(4000))
    median, tail = lengths[2000], lengths[3960]
    assert tail >= 5 * median
    assert lengths[0] >= MIN_TERMS + 1
    assert lengths[-1] <= MAX_TERMS + 1


@given(many_terms)
def test_right_work_is_worth_one(terms: list[int]) -> None:
    verdict = grade(terms, answer_text(running_sums(terms)))
    assert verdict.reward == 1.0 and set(verdict.parts.values()) == {1.0}
    assert verdict.remark == f"right: {sum(terms) % 100} in {len(terms)} steps"


@given(many_terms, st.data())
def test_a_skipped_term_is_worth_nothing(terms: list[int], data: st.DataObject) -> None:
    skipped = data.draw(st.integers(0, len(terms) - 1))
    rest = [term for index, term in enumerate(terms) if index != skipped]
    assert grade(terms, answer_text(running_sums(rest))).reward == 0.0


@given(many_terms, st.text())
def test_any_text_gets_a_verdict_in_range(terms: list[int], text: str) -> None:
    verdict = grade(terms, text)
    assert verdict.reward in (0.0, 1.0)
    assert all(0.0 <= part <= 1.0 for part in verdict.parts.values())
    assert verdict.remark


@pytest.mark.parametrize(
    ("text", "remark"),
    [
        (" 3 → 11 → 16 → 25.", "right: 25 in 4 steps"),
        (" 3 → 12 → 16 → 25.", "step 2 is 12, should be 11"),
        (" 3 → 11 → 17 → 26.", "step 3 is 17, should be 16"),
        (" 3 → 11 → 20.", "step 3 is 20, should be 16"),
        (" 3 → 11.", "stopped after 2 of 4 steps"),
        (" 3 → 11 → 16 → 25 → 25.", "5 steps instead of 4"),
        ("", "not a chain of sums"),
        (" 3 11 → 16 → 25.", "not a chain of sums"),
        (" 3 → 11 → 16 → 25..", "not a chain of sums"),
        (" 3 → 11. → 16 → 25", "not a chain of sums"),
    ],
)
def test_remark_explains_the_verdict(text: str, remark: str) -> None:
    verdict = say(text)
    assert verdict.remark == remark
    assert verdict.reward == float(remark.startswith("right"))


def test_parts_explain_the_reward() -> None:
    assert say(" 3 → 11 → 17 → 26.").parts == {
        "well_formed": 1.0,
        "right_end": 0.0,
        "right_steps": 1.0,
        "share_of_steps_right": 0.5,
    }


def test_verdict_is_the_same_without_the_end_token() -> None:
    assert say(" 3 → 11 → 16 → 25") == say(" 3 → 11 → 16 → 25.")


def test_slips_that_cancel_out_are_not_paid() -> None:
    verdict = say(" 3 → 12 → 16 → 25.")
    assert verdict.parts["right_end"] == verdict.parts["right_steps"] == 1.0
    assert verdict.reward == 0.0


def test_too_many_steps_are_not_paid() -> None:
    assert say(" 3 → 11 → 16 → 25 → 3 → 11 → 16 → 25.").reward == 0.0


def test_first_turn_ends_the_trajectory() -> None:
    environment = RunningSums(seed=0)
    prompt = environment.prompt("train", 0)
    turn = Turn(text=answer_text(running_sums(terms_of(prompt))))
    assert environment.respond(prompt, [turn]).reward == 1.0
    with pytest.raises(ValueError, match="exactly one"):
        environment.respond(prompt, [turn, turn])


def test_a_broken_prompt_is_an_error_and_not_reward_zero() -> None:
    broken = Prompt(split="train", ordinal=0, text="3 + 8 =", facts={})
    with pytest.raises(GraderError) as caught:
        RunningSums(seed=0).respond(broken, [Turn(text=" 3 → 11.")])
    assert not caught.value.retryable


def made(params: dict[str, ParamValue]) -> Environment:
    return make_environment(EnvironmentSpec(name="running_sums", params=params), seed=0, data_folder=None)


def test_params_shape_the_prompts_and_wrong_ones_are_refused() -> None:
    short = made({"median_terms": 3, "sigma": 0.0, "max_terms": 5})
    assert {len(terms_of(short.prompt("train", i))) for i in range(20)} == {3}
    wrong: list[dict[str, ParamValue]] = [
        {"digits": 3},
        {"sigma": "wide"},
        {"median_terms": 1},
        {"max_terms": 65},
        {"sigma": -1.0},
    ]
    for params in wrong:
        with pytest.raises(ValueError, match=next(iter(params))):
            made(params)


def test_no_environment_imports_torch() -> None:
    code = "import sys, engine.environments.registry; print('torch' in sys.modules)"
    assert in_fresh_process(code).stdout.strip() == "False"
