"""Environments whose judges, tools or entire code run in the sandbox."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from engine.environments.custom import Custom
from engine.environments.gym import ReasoningGym
from engine.environments.judging.verifiers import Verify, make_verifier
from engine.environments.params import ParamReader
from engine.environments.port import GraderError, Observation, Turn, Verdict
from engine.environments.registry import make_environment
from engine.spec.job import EnvironmentSpec
from tests.engine.environments.sandboxed import sandbox

__all__ = ["sandbox"]
pytestmark = [pytest.mark.sandbox, pytest.mark.usefixtures("sandbox")]

CUSTOM = """
def prompt(split, ordinal, seed, params):
    return {"text": f"{split} {seed}: count to {ordinal + params['start']}", "facts": {"due": ordinal}}


def respond(prompt, turns):
    answer = turns[-1]
    print("noise on standard output")
    if answer == "crash":
        return {}["missing"]
    if answer == "hang":
        while True:
            pass
    if answer == "leave":
        raise SystemExit(0)
    if answer.startswith("odd"):
        odd = [None, {"reward": "1"}, {"reward": float("nan")}, {"reward": 1, "parts": {"p": 7}}, {"x": 1}]
        return odd[int(answer[3:])]
    if len(turns) == 1:
        return {"observation": "next"}
    return {"reward": float(answer == str(prompt["facts"]["due"])), "parts": {"long": 0.5}, "remark": "judged"}
"""


def verifier(name: str, *, timeout_s: float) -> Verify:
    return make_verifier(ParamReader("jsonl", {"verifier": name}), timeout_s=timeout_s)


# ── custom ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def custom(sandbox: None) -> Custom:
    return Custom(seed=7, code=CUSTOM, params={"start": 1}, timeout_s=0.5)


def respond(environment: Custom, *said: str) -> Observation | Verdict:
    return environment.respond(environment.prompt("train", 3), [Turn(text=text) for text in said])


def test_a_customers_file_asks_observes_and_judges(custom: Custom) -> None:
    assert custom.prompt("held_out", 3).text == "held_out 7: count to 4"
    assert respond(custom, "1") == Observation(text="next")
    verdict = respond(custom, "1", "3")
    assert verdict == Verdict(reward=1.0, parts={"long": 0.5}, trusted=True, remark="judged")


def test_custom_conclude_judges_truncated_trajectories(custom: Custom) -> None:
    prompt, turns = custom.prompt("train", 3), [Turn(text="1")]
    assert custom.conclude(prompt, turns).reward == 0.0
    judges = f"{CUSTOM}\ndef conclude(prompt, turns):\n    return {{'reward': -0.5, 'remark': f'after {{len(turns)}}'}}"
    verdict = Custom(seed=7, code=judges, params={"start": 1}, timeout_s=5).conclude(prompt, turns)
    assert (verdict.reward, verdict.remark) == (-0.5, "after 1")
    observes = f"{CUSTOM}\ndef conclude(prompt, turns):\n    return {{'observation': 'next'}}"
    with pytest.raises(GraderError, match="conclude"):
        Custom(seed=7, code=observes, params={"start": 1}, timeout_s=5).conclude(prompt, turns)


def test_exception_of_a_customers_file_is_shown_with_its_line(custom: Custom) -> None:
    with pytest.raises(GraderError, match="KeyError: 'missing'") as caught:
        respond(custom, "crash")
    assert "line 10, in respond" in str(caught.value) and not caught.value.retryable


def test_hanging_respond_is_final_and_next_call_succeeds(custom: Custom) -> None:
    with pytest.raises(GraderError, match="in time") as caught:
        respond(custom, "hang")
    assert not caught.value.retryable
    assert isinstance(respond(custom, "1", "3"), Verdict)


@pytest.mark.parametrize("said", ["odd0", "odd1", "odd2", "odd3", "odd4", "leave"])
def test_response_of_another_shape_is_an_error(custom: Custom, said: str) -> None:
    with pytest.raises(GraderError):
        respond(custom, said)


def test_many_threads_may_respond_at_once(custom: Custom) -> None:
    with ThreadPoolExecutor(16) as threads:
        verdicts = list(threads.map(lambda at: respond(custom, "1", str(at % 5)), range(40)))
    assert [verdict.reward for verdict in verdicts if isinstance(verdict, Verdict)] == [
        float(at % 5 == 3) for at in range(40)
    ]


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("def prompt(:", "SyntaxError"),
        ("import numpy_of_theirs", "ModuleNotFoundError"),
        ("x = 1", "no attribute 'prompt'"),
        ("def prompt(*_): return 'hello'", "prompt: "),
        ("def prompt(*_): return {'text': 'x', 'messages': []}", "prompt: "),
        ("def prompt(*_): return {'messages': [{'role': 'king'}]}", "prompt: messages: message 1: an object with"),
        ("def prompt(*_): return {'text': 'same'}", "got 'same' in both"),
        ("def prompt(split, ordinal, seed, params): return {'text': split, 'facts': {'a': None}}", "facts: texts"),
    ],
)
def test_file_without_working_prompts_is_refused(code: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        make_environment(EnvironmentSpec(name="custom", code=code), seed=0, data_folder=None)


def test_custom_prompt_may_be_messages_with_tools() -> None:
    code = """
def prompt(split, ordinal, seed, params):
    messages = [{"role": "system", "content": split}, {"role": "user", "content": str(ordinal)}]
    return {"messages": messages, "tools": [{"type": "function"}], "facts": {"due": ordinal}}
"""
    prompt = Custom(seed=0, code=code, params={}, timeout_s=30).prompt("train", 3)
    assert [message["content"] for message in prompt.messages] == ["train", "3"]
    assert prompt.tools == ({"type": "function"},) and prompt.facts == {"due": 3}
    assert prompt.text == "system: train\n\nuser: 3"


def test_example_of_the_readme_works() -> None:
    readme = Path(__file__).parents[3] / "engine" / "environments" / "README.md"
    code = readme.read_text().partition("```python\n")[2].partition("```")[0]
    example = Custom(seed=3, code=code, params={}, timeout_s=30)
    asked = example.prompt("train", 5)
    number = asked.text.split()[1]
    assert example.respond(asked, [Turn(text="")]) == Observation(text="Please answer.\n")
    right = example.respond(asked, [Turn(text=""), Turn(text=f"{number[::-1]}\n")])
    assert isinstance(right, Verdict) and (right.reward, right.remark) == (1.0, "right")


def test_graded_judge_gets_all_columns_of_the_row(tmp_path: Path) -> None:
    code = """
def respond(prompt, turns):
    facts = prompt["facts"]
    if len(turns) == 1 and facts["twice"]:
        return {"observation": "Once more.", "role": "tool", "tool": "sum", "arguments": "1", "error": "no"}
    return {"reward": float(turns[-1] == facts["due"] * facts["times"]), "remark": ",".join(sorted(facts))}
"""
    rows = [{"prompt": f"Say {i}.", "due": str(i), "times": 2, "twice": i % 2, "tags": ["a", "b"]} for i in range(40)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = EnvironmentSpec(name="graded", params={"data": str(path)}, code=code)
    environment = make_environment(spec, seed=0, data_folder=None)
    by_number = {prompt.text: prompt for prompt in (environment.prompt("train", ordinal) for ordinal in range(30))}
    odd = next(prompt for prompt in by_number.values() if prompt.facts["twice"])
    right = Turn(text=str(odd.facts["due"]) * 2)
    assert odd.facts["tags"] == '["a", "b"]'
    once_more = Observation(text="Once more.", role="tool", tool="sum", arguments="1", error="no")
    assert environment.respond(odd, [right]) == once_more
    verdict = environment.respond(odd, [right, right])
    assert isinstance(verdict, Verdict) and (verdict.reward, verdict.remark) == (1.0, "due,tags,times,twice")
    with pytest.raises(ValueError, match=r"graded: environment\.code"):
        make_environment(EnvironmentSpec(name="graded", params={"data": str(path)}), seed=0, data_folder=None)
    with pytest.raises(ValueError, match="graded: data"):
        make_environment(EnvironmentSpec(name="graded", code=code), seed=0, data_folder=None)


# ── verifiers ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_mathematics_is_compared_in_any_notation() -> None:
    verify = verifier("math_verify", timeout_s=60.0)
    for due, said, right in (
        ("1/2", r"so it is \boxed{0.5}", True),
        ("$x^2 + 1$", "$1 + x^2$", True),
        (r"$\frac{1}{3}$", "$0.3$", False),
        ("3", "no idea", False),
    ):
        assert verify(due, said).reward == float(right), (due, said)


def test_a_pattern_is_searched() -> None:
    verify = verifier("regex", timeout_s=60.0)
    assert verify("^yes|ja$", "oh ja").reward == 1.0
    assert verify("^yes$", "no").reward == 0.0


def test_a_file_of_programming_tasks_is_judged_by_its_tests(tmp_path: Path) -> None:
    path = tmp_path / "code.jsonl"
    path.write_text("".join(f'{{"prompt": "Write f{i}.", "answer": "assert f{i}(2) == {i + 2}"}}\n' for i in range(40)))
    spec = EnvironmentSpec(name="jsonl", params={"data": str(path), "verifier": "unit_tests"})
    environment = make_environment(spec, seed=0, data_folder=None)
    prompt = environment.prompt("train", 0)
    name = prompt.text.removeprefix("Write ").removesuffix(".")
    verdict = environment.respond(prompt, [Turn(text=f"```python\ndef {name}(x): return x + {name[1:]}\n```")])
    assert isinstance(verdict, Verdict) and verdict.reward == 1.0


def test_python_tool_shows_output_and_failure() -> None:
    patient, hasty = (
        make_environment(
            EnvironmentSpec(name="tools", params={"tools": "python", "tool_timeout_s": timeout_s}),
            seed=0,
            data_folder=None,
        )
        for timeout_s in (30, 1)
    )
    prompt = patient.prompt("train", 0)
    for environment, program, shown in (
        (patient, "print(6 * 7)", "42"),
        (patient, "1 / 0", "ZeroDivisionError"),
        (hasty, "while True: pass", "took longer than 1 s"),
        (patient, "x = 1", "(it printed nothing)"),
        (patient, "print('y' * 100_000, flush=True); 1 / 0", "ended with exit code 1"),
    ):
        answer = environment.respond(prompt, [Turn(text=f"<tool>python {program}</tool>")])
        assert isinstance(answer, Observation) and shown in answer.text and len(answer.text) < 5_000
        assert bool(answer.error) == ("error: the program" in answer.text)


# ── reasoning-gym ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.long
def test_a_task_of_reasoning_gym_is_asked_and_scored_by_its_name() -> None:
    environment = ReasoningGym(seed=1, task="countdown", params={"max_numbers": 4, "min_numbers": 4}, timeout_s=30)
    prompts = {split: [environment.prompt(split, i) for i in range(12)] for split in ("train", "held_out")}
    assert prompts["train"][0] == environment.prompt("train", 0)
    assert not {p.text for p in prompts["train"]} & {p.text for p in prompts["held_out"]}
    scored = environment.respond(prompts["train"][0], [Turn(text="1 + 1")])
    assert 0.0 <= scored.reward < 1.0 and scored.trusted
    # This task's scorer would evaluate the text. The reward stays trusted: an untrusted one would not be trained on.
    trick = environment.respond(prompts["train"][0], [Turn(text="__import__('os')._exit(0)")])
    assert trick.reward <= 0.01 and trick.trusted


@pytest.mark.long
def test_a_question_is_the_same_in_every_process() -> None:
    """This task writes its terms in the order of a set."""
    texts = set()
    for _ in range(2):
        environment = ReasoningGym(seed=1, task="polynomial_multiplication", params={}, timeout_s=30)
        texts.add("".join(environment.prompt("train", ordinal).text for ordinal in range(6)))
    assert len(texts) == 1


@pytest.mark.long
def test_unknown_reasoning_gym_task_or_setting_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown name 'chess'; choose from ab, acre"):
        ReasoningGym(seed=1, task="chess", params={}, timeout_s=30)
    with pytest.raises(ValueError, match="unexpected keyword argument 'depth'"):
        ReasoningGym(seed=1, task="chain_sum", params={"depth": 3}, timeout_s=30)
