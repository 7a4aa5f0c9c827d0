"""Every environment: prompts, rewards and refusals; and that no held-out prompt is trained on."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.environments.judging.verifiers import answer_part, exact, last_number, numeric
from engine.environments.port import Environment, GraderError, Observation, Prompt, Split, Turn, Verdict
from engine.environments.questions.data_set import HeldOut, Questions
from engine.environments.registry import ENVIRONMENT_NAMES, make_environment
from engine.environments.splits import place_in_order, split_of_text
from engine.environments.tools.calculator import NotArithmetic, calculate
from engine.environments.tools.search import Corpus
from engine.environments.tools.tool_sums import ToolSums
from engine.environments.tools.waits import Waits
from engine.spec.job import EnvironmentSpec, ParamValue

SPLITS: tuple[Split, Split] = ("train", "held_out")


def made(name: str, *, seed: int = 0, folder: Path | None = None, **params: ParamValue) -> Environment:
    """Skips the spec's own validation, which knows the names too."""
    fields: dict[str, Any] = {"name": name, "params": params}
    return make_environment(EnvironmentSpec.model_construct(**fields), seed=seed, data_folder=folder)


def said(environment: Environment, prompt: Prompt, *texts: str) -> Observation | Verdict:
    return environment.respond(prompt, [Turn(text=text) for text in texts])


def write_lines(path: Path, *lines: object) -> Path:
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def questions(path: Path, num: int = 200) -> Path:
    return write_lines(path, *({"prompt": f"What is {i} + 1?", "answer": str(i + 1)} for i in range(num)))


# ── by name ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_unknown_environment_is_refused_with_all_names() -> None:
    assert set(ENVIRONMENT_NAMES) == {
        "running_sums",
        "tool_sums",
        "tools",
        "jsonl",
        "reasoning_gym",
        "graded",
        "custom",
    }
    with pytest.raises(ValueError, match=f"unknown name 'chess'; choose from {', '.join(ENVIRONMENT_NAMES)}"):
        made("chess")


@pytest.mark.parametrize(
    ("name", "params", "error"),
    [
        ("tool_sums", {"turns": 0}, "turns: a whole number from 1"),
        ("tool_sums", {"waits": "long"}, "waits: one of tailed, constant, none"),
        ("tool_sums", {"depth": 3}, "unknown parameter 'depth'; choose from turns, waits"),
        ("tools", {"tools": "calculator,hammer"}, "list of calculator, search, python; got 'calculator,hammer'"),
        ("tools", {"tools": "search"}, "search needs corpus"),
        ("tools", {"calls": "shouts"}, "calls: one of marks, tool_call"),
        ("tools", {"wait_median_s": True}, "wait_median_s: a number from 0"),
        ("tools", {"verifier": "feeling"}, "verifier: one of exact, numeric, regex"),
        ("jsonl", {}, "data: required, the name of a file of questions"),
        ("jsonl", {"data": "/nowhere/at/all.jsonl"}, "all.jsonl cannot be read"),
        ("jsonl", {"data": 3}, "data: a text"),
    ],
)
def test_wrong_parameter_is_refused_with_accepted_values(name: str, params: dict[str, ParamValue], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        make_environment(EnvironmentSpec.model_validate({"name": name, "params": params}), seed=0, data_folder=None)


@pytest.mark.parametrize("name", ["tool_sums", "tools", "running_sums"])
def test_prompt_follows_from_seed_split_and_ordinal(name: str) -> None:
    first, again, other = made(name, seed=1), made(name, seed=1), made(name, seed=2)
    assert [first.prompt("train", i) for i in range(40)] == [again.prompt("train", i) for i in range(40)]
    assert [first.prompt("train", i) for i in range(40)] != [other.prompt("train", i) for i in range(40)]
    train, held_out = ({first.prompt(split, i).text for i in range(300)} for split in SPLITS)
    assert not train & ({other.prompt("held_out", i).text for i in range(300)} | held_out)
    with pytest.raises(ValueError, match="ordinal"):
        first.prompt("train", -1)


# ── order and splits ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.long
@given(st.integers(1, 300), st.text(max_size=5), st.integers(0, 3))
def test_every_lap_asks_every_question_once(num: int, seed: str, lap: int) -> None:
    asked = [place_in_order(lap * num + at, num, seed) for at in range(num)]
    assert sorted(asked) == list(range(num))


def test_laps_and_seeds_have_orders_of_their_own() -> None:
    orders = [tuple(place_in_order(start + at, 50, seed) for at in range(50)) for seed in "ab" for start in (0, 50)]
    assert len(set(orders)) == 4 and tuple(range(50)) not in orders


def test_share_of_held_out_prompts_is_as_configured() -> None:
    counts = Counter(split_of_text(f"prompt {i}", 0.25) for i in range(4000))
    assert 900 < counts["held_out"] < 1100


# ── jsonl ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_file_of_questions_is_asked_through_in_each_split(tmp_path: Path) -> None:
    path = questions(tmp_path / "sums.jsonl")
    environment = made("jsonl", data=str(path), verifier="numeric")
    file = Questions(path, seed=0)
    texts = {split: {environment.prompt(split, i).text for i in range(file.num(split))} for split in SPLITS}
    assert len(texts["train"]) + len(texts["held_out"]) == 200 and not texts["train"] & texts["held_out"]
    prompt = environment.prompt("train", 7)
    verdict = said(environment, prompt, f"That is {prompt.facts['answer']}.")
    assert isinstance(verdict, Verdict) and verdict.reward == 1.0
    assert "answer" not in prompt.text


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("{", "bad.jsonl:3: not a line of JSON"),
        ("[" * 100_000, "bad.jsonl:3: not a line of JSON"),
        ('"text"', "bad.jsonl:3: expected a JSON object"),
        ({"prompt": " ", "answer": "x"}, "bad.jsonl:3: prompt: a text that is not empty"),
        ({"prompt": "p"}, "bad.jsonl:3: answer: a text, a number"),
        ({"prompt": "p", "answer": True}, "bad.jsonl:3: answer: a text, a number"),
    ],
)
def test_a_bad_line_is_refused_with_file_and_line(tmp_path: Path, line: object, error: str) -> None:
    good = {"prompt": "p", "answer": "a"}
    path = write_lines(tmp_path / "bad.jsonl", good, "", line, good)
    with pytest.raises(ValueError, match=error):
        made("jsonl", data=str(path))


def test_a_file_too_small_for_two_splits_is_refused(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "one.jsonl", {"prompt": "p", "answer": "a"})
    with pytest.raises(ValueError, match="no prompt in the split"):
        made("jsonl", data=str(path))


def test_lines_longer_than_a_read_are_whole(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    lines = [json.dumps({"prompt": f"{i} " + "ü" * 20_000, "answer": i}) for i in range(40)]
    path.write_text("\r\n".join(lines))
    file = Questions(path, seed=3, held_out=HeldOut(share=0.3))
    found = [file.question(split, i) for split in SPLITS for i in range(file.num(split))]
    assert {question.prompt.partition(" ")[0] for question in found} == set(map(str, range(40)))
    assert all(len(question.prompt) > 20_000 for question in found)


def test_file_changed_during_the_job_is_an_error(tmp_path: Path) -> None:
    path = questions(tmp_path / "sums.jsonl")
    environment = made("jsonl", data=str(path))
    path.write_text("gone\n" * 2_000)
    with pytest.raises(GraderError, match="was changed while in use") as caught:
        environment.prompt("train", 0)
    assert not caught.value.retryable


def test_job_of_the_service_reads_files_of_its_store_only(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    secret = questions(tmp_path / "secret.jsonl")
    (folder / "link.jsonl").symlink_to(secret)
    questions(folder / "mine.jsonl")
    assert made("jsonl", folder=folder, data="mine.jsonl").prompt("train", 0).text.startswith("What is")
    for name in ("../secret.jsonl", str(secret), "link.jsonl", ".", "..", "none.jsonl", "mine.jsonl\0", ".hidden"):
        with pytest.raises(ValueError, match=r"environment\.params\.data|control characters"):
            made("jsonl", folder=folder, data=name)
    with pytest.raises(ValueError, match=r"environment\.params\.corpus"):
        made("tools", folder=folder, tools="search", corpus=str(secret))


# ── verifiers ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("due", "text", "right"),
    [
        ("42", "the answer is 42.", True),
        ("42", "42 is wrong, it is 43", False),
        ("1,234.5", "about 1234.5", True),
        ("0.5", "one half, 1/2", True),
        ("-3", "it is -3", True),
        ("1e3", "1000", True),
        ("1000000", "1000001", False),
        ("12345678901234567890", "12345678901234567891", False),
        ("12345678901234567890", "012345678901234567890", True),
        ("7", "seven", False),
        ("7", "7 / 0", False),
        ("7", "9" * 5_000, False),
    ],
)
def test_numbers_are_compared_as_numbers(due: str, text: str, right: bool) -> None:
    assert numeric(due, text, 1e-9).reward == float(right)


def test_the_tolerance_is_relative_above_one_and_absolute_below() -> None:
    assert numeric("200", "201", 0.01).reward == 1.0 and numeric("200", "203", 0.01).reward == 0.0
    assert numeric("0.001", "0.009", 0.01).reward == 1.0


@pytest.mark.long
@given(st.text(max_size=60), st.sampled_from(["42", "-1/3", "2.5e10"]))
def test_any_text_gets_a_verdict(text: str, due: str) -> None:
    for verdict in (numeric(due, text, 1e-9), exact(due, text)):
        assert verdict.reward in (0.0, 1.0) and verdict.remark


@given(st.integers(-(10**12), 10**12), st.text(alphabet="abc .:\n", max_size=20))
def test_the_last_number_is_found_behind_any_words(number: int, words: str) -> None:
    found = last_number(f"{words} 17 {words} {number}")
    assert found is not None and found[1] == number


def test_expected_answer_without_a_number_is_a_grader_error() -> None:
    with pytest.raises(GraderError):
        numeric("none", "3", 1e-9)


def test_judged_part_is_between_last_marker_and_end_text() -> None:
    assert answer_part("#### 3\n#### 4<end>", after="####", end="<end>") == " 4"
    assert answer_part("no marker", after="####", end="") == ""
    assert answer_part("all of it", after="", end="") == "all of it"


# ── tools ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def longer_sums(shorter: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.builds("({}{}{})".format, shorter, st.sampled_from("+-*"), shorter)


@given(st.recursive(st.integers(0, 99).map(str), longer_sums, max_leaves=12))
def test_the_calculator_agrees_with_python(text: str) -> None:
    assert calculate(text) == str(eval(text))  # noqa: S307 - made of digits and signs above


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1/2 + 1/3", "0.833333333333"),
        ("2^3^2", "512"),
        ("-2**2", "-4"),
        ("7 % 4", "3"),
        ("1.5*4", "6"),
        ("2^-1", "0.5"),
    ],
)
def test_the_calculator_knows_fractions_powers_and_signs(text: str, value: str) -> None:
    assert calculate(text) == value


NO_ARITHMETIC = ["", "1+", "(1", "1)", "1 2", "1/0", "0^-1", "9^999^9", "9" * 501, "(" * 200, "-" * 400 + "1"]
NO_ARITHMETIC += ["__import__('os')", "1e5", "((9^300)^9)"]


@pytest.mark.parametrize("text", NO_ARITHMETIC)
def test_calculator_refuses_other_text_than_arithmetic(text: str) -> None:
    with pytest.raises(NotArithmetic):
        calculate(text)


@given(st.text(alphabet="0123456789.+-*/%^() ", max_size=80))
def test_the_calculator_always_ends(text: str) -> None:
    try:
        assert len(calculate(text)) < 400
    except NotArithmetic as error:
        assert str(error)


def test_a_trajectory_with_a_tool_ends_with_its_answer() -> None:
    environment = made("tools")
    prompt = environment.prompt("train", 0)
    sum_asked = prompt.text.rpartition("What is ")[2].rstrip("?\n")
    call = f"Let me see. <tool>calculator {sum_asked}</tool> and more"
    assert said(environment, prompt, call) == Observation(
        text=f"\n<result>{prompt.facts['answer']}</result>\n",
        role="tool",
        tool="calculator",
        arguments=sum_asked,
    )
    verdict = said(environment, prompt, call, f"<answer>{prompt.facts['answer']}</answer>")
    assert isinstance(verdict, Verdict) and verdict.reward == 1.0
    assert said(environment, prompt, "<answer>1</answer> <tool>calculator 1</tool>") == said(environment, prompt, "1")


def test_tool_call_in_the_format_of_chat_models() -> None:
    environment = made("tools", calls="tool_call")
    prompt = environment.prompt("train", 0)
    assert [tool["function"]["name"] for tool in prompt.tools] == ["calculator"] and "<tool>" not in prompt.text
    sum_asked = prompt.text.rpartition("What is ")[2].rstrip("?\n")
    written = json.dumps({"name": "calculator", "arguments": {"expression": sum_asked}})
    thought = '<think>\n<tool_call>{"name": "hammer"}</tool_call>? No. <answer>0</answer>\n</think>\n\n'
    call = f"{thought}<tool_call>\n{written}\n</tool_call>"
    assert said(environment, prompt, call) == Observation(
        text=str(prompt.facts["answer"]), role="tool", tool="calculator", arguments=sum_asked
    )
    verdict = said(environment, prompt, call, f"{thought}<answer>{prompt.facts['answer']}</answer>")
    assert isinstance(verdict, Verdict) and verdict.reward == 1.0


@pytest.mark.parametrize(
    ("written", "error"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"name": "calculator"}', '"arguments"'),
        ('{"name": "calculator", "arguments": {"a": 1, "b": 2}}', '"arguments"'),
        ('{"name": "hammer", "arguments": {"expression": "1"}}', "there is no tool 'hammer'; there is calculator"),
        ('{"name": "calculator", "arguments": {"expression": "1/0"}}', "division by zero"),
    ],
)
def test_wrong_tool_call_in_json_is_answered_with_the_error(written: str, error: str) -> None:
    environment = made("tools", calls="tool_call")
    answer = said(environment, environment.prompt("train", 0), f"<tool_call>{written}</tool_call>")
    assert isinstance(answer, Observation) and error in answer.text and error in answer.error


def test_wrong_call_in_marks_is_answered_with_the_error() -> None:
    environment = made("tools")
    prompt = environment.prompt("train", 0)
    for call, error in (("<tool>hammer 3</tool>", "there is no tool"), ("<tool>calculator 1/0", "division by zero")):
        answer = said(environment, prompt, call)
        assert isinstance(answer, Observation) and error in answer.text


def test_the_last_turn_is_the_end_even_with_a_call() -> None:
    environment = made("tools", max_turns=2)
    prompt = environment.prompt("train", 0)
    call = "<tool>calculator 1</tool>"
    assert isinstance(said(environment, prompt, call), Observation)
    verdict = said(environment, prompt, call, call)
    assert isinstance(verdict, Verdict) and verdict.reward == 0.0 and "no answer in 2 turns" in verdict.remark


def test_search_finds_the_document_that_is_about_the_words(tmp_path: Path) -> None:
    documents = [{"title": "Paris", "text": "The capital of France."}, {"title": "Lyon", "text": "A city of France."}]
    documents += [{"text": f"Nothing of interest, number {i}, of the many"} for i in range(50)]
    path = write_lines(tmp_path / "corpus.jsonl", *documents)
    corpus = Corpus(path)
    assert [document.title for document in corpus.search("capital of FRANCE", num=2)] == ["Paris", "Lyon"]
    assert corpus.search("zebra", num=3) == []
    environment = made("tools", corpus=str(path))
    answer = said(environment, environment.prompt("train", 0), "<tool>search capital</tool>")
    assert isinstance(answer, Observation) and "The capital of France." in answer.text
    with pytest.raises(ValueError, match=r"corpus\.jsonl:1: expected an object"):
        Corpus(write_lines(path, {"words": "x"}))


# ── tool_sums and waits ───────────────────────────────────────────────────────────────────────────────────────────────


def test_tool_sums_uses_the_demo_tokenizers_vocabulary() -> None:
    from engine.models.demo_tokenizer import UNKNOWN, build_tokenizer

    tokenizer = build_tokenizer()
    environment = ToolSums(seed=0, turns=5, waits="none")
    for ordinal in range(30):
        prompt = environment.prompt("train", ordinal)
        texts = [prompt.text]
        for num in range(1, 5):
            answer = said(environment, prompt, *[" 3."] * num)
            assert isinstance(answer, Observation)
            texts.append(answer.text)
        for text in texts:
            encoded = tokenizer.encode(text)
            assert UNKNOWN not in encoded.tokens and tokenizer.decode(encoded.ids) == text


def test_tool_sums_reward_is_the_share_of_right_turns() -> None:
    environment = ToolSums(seed=0, turns=3, waits="none")
    prompt = environment.prompt("train", 0)
    a, b, c, d = map(int, str(prompt.facts["terms"]).split())
    sums = [a + b, a + b + c, a + b + c + d]
    assert prompt.text == f"{a} + {b} ="
    assert said(environment, prompt, f" {a} → {sums[0]}.") == Observation(
        text=f" + {c} =", role="tool", tool="next_term"
    )
    right = said(environment, prompt, *[f" {a} → {total}." for total in sums])
    assert isinstance(right, Verdict) and right.reward == 1.0
    mixed = said(environment, prompt, f" {sums[0]}", "", f" → {sums[2]}.")
    assert isinstance(mixed, Verdict) and mixed.reward == pytest.approx(2 / 3)
    assert mixed.remark == f"turn 2: got no number, should be {sums[1]}"


def waits_of(kind: str, *, mean_s: float = 1.0) -> list[float]:
    environment = made("tool_sums", waits=kind, wait_mean_s=mean_s)
    assert isinstance(environment, ToolSums)
    return sorted(environment.waits.seconds(environment.prompt("train", i), 0) for i in range(4000))


def test_tailed_waits_have_a_long_tail_at_the_same_mean() -> None:
    tailed, constant = waits_of("tailed"), waits_of("constant")
    assert set(constant) == {1.0} and set(waits_of("none")) == {0.0}
    assert sum(tailed) / len(tailed) == pytest.approx(1.0, rel=0.1)
    assert tailed[3960] > 8 * tailed[2000] and tailed[-1] <= 30.0


def test_a_wait_follows_from_seed_prompt_sample_and_turn() -> None:
    waits, other = Waits(seed=1, median_s=1.0, sigma=1.0), Waits(seed=2, median_s=1.0, sigma=1.0)
    prompts = [
        Prompt(split=split, ordinal=ordinal, text="", facts={"sample": sample})
        for split in SPLITS
        for ordinal in (0, 1)
        for sample in (0, 1)
    ]
    drawn = [waits.seconds(prompt, turn) for prompt in prompts for turn in (0, 1)]
    assert len(set(drawn)) == len(drawn) == 16
    assert drawn == [waits.seconds(prompt, turn) for prompt in prompts for turn in (0, 1)]
    assert drawn != [other.seconds(prompt, turn) for prompt in prompts for turn in (0, 1)]
