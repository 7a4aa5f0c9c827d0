"""Rewards cannot be forged: no judge runs a model's text in its own process, and a text that breaks its judge gets 0.

The corpus of forgeries is in `forgeries`; `gym_corpus` compares our judge's scores with the library's own.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from engine.environments.gym import IMPORTS, MEMORY_BYTES, PACKAGES
from engine.environments.judging.graders import SpoiltByText, TextJudge, inside_file
from engine.environments.judging.unit_tests import UnitTests
from engine.environments.judging.verifiers import make_verifier
from engine.environments.params import ParamReader
from engine.environments.port import GraderError, Observation, Turn, Verdict
from engine.environments.registry import make_environment
from engine.environments.tools.calculator import NotArithmetic, calculate
from engine.spec.job import EnvironmentSpec
from tests.engine.environments import gym_corpus
from tests.engine.environments.forgeries import MATHEMATICS, PLAIN, PROGRAMS, TASKS, forged
from tests.engine.environments.sandboxed import sandbox

__all__ = ["sandbox"]
INSIDE = Path(__file__).parents[3] / "engine" / "environments" / "sandbox" / "inside"
READ = TASKS[:9]
"""The tasks of reasoning-gym whose scorers would evaluate the answer without our readers."""
REPAIRED = (
    "boxnet", "coin_flip", "game_of_life", "game_of_life_halting", "mini_sudoku", "polynomial_equations", "puzzle24",
    "rectangle_count", "sudoku", "time_intervals",
)  # fmt: skip
HALF_PAID = 0.05
"""The most that the library's scorers give for a wrong but readable answer."""


# ── reasoning-gym ─────────────────────────────────────────────────────────────────────────────────────────────────────


SHOWN = """
def shown(task, index, answer, cpu_s):
    if answer is None:
        return json.loads(json.dumps(_made(task, "{}", index)[1], default=str))
    return score(task, "{}", index, answer, cpu_s)
"""


class Gym:
    """A judge of several tasks in one sandbox that also returns their questions."""

    def __init__(self, tasks: Sequence[str], *, timeout_s: float) -> None:
        warm = "\n".join(f"warm_up({task!r}, '{{}}')" for task in tasks)
        self._judge = TextJudge(
            main=f"{inside_file('gym.py')}\n{SHOWN}\n{warm}\n",
            function="shown",
            imports=IMPORTS,
            timeout_s=timeout_s,
            packages=PACKAGES,
            memory_bytes=MEMORY_BYTES,
            size=1,
        )

    def entry(self, task: str, index: int) -> dict[str, object]:
        entry = self._judge.judge(task, index, None)
        assert isinstance(entry, dict)
        return entry

    def score(self, task: str, index: int, said: str) -> object:
        try:
            return self._judge.judge(task, index, said)
        except SpoiltByText:
            return 0.0

    def paid(self, task: str, index: int, forgeries: Sequence[str]) -> dict[str, object]:
        """The forgeries with a reward. A `GraderError`, which means no reward at all, is not caught."""
        scores = {text[:100]: self.score(task, index, text) for text in forgeries}
        return {text: score for text, score in scores.items() if score is not None and score > HALF_PAID}  # type: ignore[operator]


@pytest.mark.long
def test_no_forged_answer_is_paid_or_without_reward(sandbox: None) -> None:
    """Each task that once evaluated its answers gets a share of the forgeries; in the soak every task gets all."""
    gym = Gym(READ, timeout_s=12.0)
    for number, task in enumerate(READ):
        entry = gym.entry(task, 5)
        forgeries = [text for text in forged(task, entry) if "9**9" not in text]
        assert gym.paid(task, 5, forgeries[number % 7 :: 7] + forgeries[-6:]) == {}, task
        assert gym.score(task, 5, str(entry["answer"])) == 1.0, task
    assert gym.score("countdown", 5, "9**9**9**9") == 0.0, "an endless computation"


@pytest.mark.soak
@pytest.mark.parametrize("task", TASKS)
def test_no_forgery_is_paid_by_any_task(sandbox: None, task: str) -> None:
    gym = Gym([task], timeout_s=60.0)
    for index in range(5):
        assert gym.paid(task, index, forged(task, gym.entry(task, index))) == {}


@pytest.mark.long
def test_unlisted_scorer_evaluates_nothing(sandbox: None) -> None:
    """The scorer calls `eval` and swallows the refusal."""
    code = """
from judging import Judging
def score(answer, cpu_s):
    judging = Judging(own_texts=("1 + 1",), cpu_s=cpu_s)
    assert eval("1 + 1") == 2
    try:
        worth = eval(answer)
    except Exception:
        worth = 1.0
    judging.refuse_if_evaluated()
    return worth
"""
    judge = TextJudge(main=code, function="score", timeout_s=60, size=1)
    for said in ("exec('1')", "(lambda: 1.0)()", "[1.0 for _ in '1'][0]", "x.__class__"):
        with pytest.raises(SpoiltByText, match="evaluate text"):
            judge.judge(said)


def test_every_scorer_that_evaluates_is_known() -> None:
    """Checks the installed library: an upgrade with another such scorer fails here, before it fails a job."""
    package = find_spec("reasoning_gym")
    assert package is not None and package.submodule_search_locations
    root = Path(next(iter(package.submodule_search_locations)))
    evaluates = re.compile(r"(?<![\w.])(?:eval|exec|parse_expr|sympify|parse_latex|__import__)\(|pickle|\.parse_expr\(")
    found = {str(path.relative_to(root)) for path in root.rglob("*.py") if evaluates.search(path.read_text())}
    known = {
        "algebra/intermediate_integration.py", "algebra/polynomial_multiplication.py", "algebra/simple_integration.py",
        "algorithmic/binary_matrix.py", "algorithmic/spiral_matrix.py", "algorithmic/string_insertion.py",
        "games/countdown.py", "games/n_queens.py", "games/puzzle24.py",
    }  # fmt: skip
    of_its_own_words = {
        "algorithmic/number_sorting.py", "arithmetic/basic_arithmetic.py", "arithmetic/bitwise_arithmetic.py",
        "arithmetic/gsm_symbolic/generators_00_49.py", "arithmetic/gsm_symbolic/generators_50_99.py",
        "code/codeio.py", "logic/propositional_logic.py",
    }  # fmt: skip
    assert found == known | of_its_own_words


# ── the same as the library's own ─────────────────────────────────────────────────────────────────────────────────────


def compared(tasks: Sequence[str], num_questions: int, num_wrong: int) -> Iterator[tuple[str, list[object]]]:
    """For each task the answers with different scores; where we repaired the scorer, those that now earn more, and
    right ones that earn less."""
    with ThreadPoolExecutor(2) as both:
        theirs, ours = both.map(lambda side: _scores(tasks, num_questions, num_wrong, side), ("theirs", "ours"))
    for task in tasks:
        assert theirs[task][1] == ours[task][1], f"{task}: not the same texts"
        assert len(theirs[task][0]) == num_questions + num_wrong
        pairs = zip(*theirs[task], ours[task][0], strict=True)
        agree = _is_repaired if task in REPAIRED else _agree
        yield task, [(text, theirs, ours) for theirs, text, ours in pairs if not agree(text, theirs, ours)]


def _is_repaired(text: str, theirs: float | str, ours: float | str) -> bool:
    """`test_guesses.py` has the right answers' scores."""
    return _agree(text, theirs, ours) or (isinstance(theirs, float) and isinstance(ours, float) and ours < theirs)


def _agree(text: str, theirs: float | str, ours: float | str) -> bool:
    """Ignores answers that one side does not score in time, and variants of an answer that the library could not
    solve (`Integral(…) + C`): any but the exact one only repeats the question."""
    return theirs == ours or gym_corpus.LATE in (theirs, ours) or "Integral(" in text


def _scores(
    tasks: Sequence[str], num_questions: int, num_wrong: int, side: str
) -> dict[str, tuple[list[float | str], list[str]]]:
    command = [sys.executable, gym_corpus.__file__, ",".join(tasks), str(num_questions), str(num_wrong), side]
    return {task: (scores, texts) for task, scores, texts in map(json.loads, _output_of(command).splitlines())}


def _output_of(command: Sequence[str]) -> str:
    environment = {**os.environ, "PYTHONPATH": str(INSIDE), "PYTHONHASHSEED": "0"}
    with TemporaryDirectory() as folder:  # some questions' own programs write files
        return subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=True).stdout


def _run_in_gym(code: str) -> list[str]:
    """Parses the last line: one task prints dots while it draws its questions."""
    return list(json.loads(_output_of([sys.executable, "-c", f"import json, gym\n{code}"]).splitlines()[-1]))


@pytest.mark.long
def test_question_equals_first_of_a_dataset_with_that_seed() -> None:
    """Checks the installed library: an upgrade with another task that keeps drawing from one generator fails here."""
    different = _run_in_gym("""
import reasoning_gym
def fresh(task, index):
    return repr(reasoning_gym.create_dataset(task, seed=index, size=1)[0])
def ours(task, index):
    return repr(gym._made(task, "{}", index)[1])
found = [task for task in gym.tasks() for index in (3, 1) if ours(task, index) != fresh(task, index)]
print()
print(json.dumps(found))
""")
    assert different == []


@pytest.mark.long
def test_a_question_is_the_same_wherever_it_is_drawn() -> None:
    """These questions of codeio use unseeded randomness: without `settled` the judge would expect another answer."""
    drawn = (26, 43, 50, 277, 557, 741, 818, 866)
    code = f'print(json.dumps([repr(gym._made("codeio", "{{}}", index)[1]) for index in {drawn}]))'
    assert _run_in_gym(code) == _run_in_gym("gym._made('codeio', '{}', 7)\n" + code)


@pytest.mark.long
def test_answers_to_parsing_tasks_score_as_in_the_library() -> None:
    assert dict(compared(READ, 4, 16)) == {task: [] for task in READ}


@pytest.mark.long
def test_answers_to_repaired_tasks_score_no_more_than_there() -> None:
    assert dict(compared(REPAIRED, 4, 16)) == {task: [] for task in REPAIRED}


@pytest.mark.soak
def test_two_thousand_answers_a_task_score_as_in_the_library() -> None:
    tasks = _run_in_gym("print(json.dumps(gym.tasks()))")
    assert dict(compared(tasks, 1_000, 1_000)) == {task: [] for task in tasks}


# ── verifiers, programs, tools ────────────────────────────────────────────────────────────────────────────────────────


def verified(name: str, due: str, said: Sequence[str], *, timeout_s: float) -> list[float]:
    verify = make_verifier(ParamReader("jsonl", {"verifier": name}), timeout_s=timeout_s)
    return [verify(due, text).reward for text in said]


@pytest.mark.long
@pytest.mark.sandbox
def test_no_verifier_pays_or_abstains_for_a_text_that_breaks_it(sandbox: None) -> None:
    assert set(verified("math_verify", "42", MATHEMATICS, timeout_s=6.0)) == {0.0}
    assert verified("math_verify", "42", ["so it is $42$"], timeout_s=30.0) == [1.0]
    assert verified("regex", "(a+)+$", ["a" * 40 + "b", "aaa"], timeout_s=6.0) == [0.0, 1.0]
    for name in ("exact", "numeric"):
        assert set(verified(name, "42", PLAIN, timeout_s=5.0)) == {0.0}, name


@pytest.mark.sandbox
def test_unreadable_expected_answer_is_a_grader_error(sandbox: None) -> None:
    for name, due in (("regex", "(unclosed"), ("math_verify", " "), ("numeric", "none")):
        with pytest.raises(GraderError, match=r"of the data set|in the answer"):
            verified(name, due, ["1"], timeout_s=30.0)


TESTS = """
assert add(1, 2) == 3
found = add((1,), (2.5,))
assert found[0] == 1
try:
    add(None, 1)
    assert False
except Exception:
    pass
"""


def judged(programs: Sequence[str], *, timeout_s: float, due: str = TESTS) -> dict[str, float]:
    tests = UnitTests(timeout_s=timeout_s)
    with ThreadPoolExecutor(4) as threads:
        verdicts = threads.map(lambda program: tests.verdict(due, program), programs)
        return {program: verdict.reward for program, verdict in zip(programs, verdicts, strict=True)}


@pytest.mark.long
@pytest.mark.sandbox
def test_no_program_is_paid_or_left_without_a_reward(sandbox: None) -> None:
    """Also where the tests expect an exception, or use the program's return values."""
    assert judged(PROGRAMS, timeout_s=2.0) == dict.fromkeys(PROGRAMS, 0.0)
    printing = ("while True: pass", "print('6' * 10**8)", "import time; time.sleep(600)", "bytearray(1 << 40)")
    cases = '[{"input": "3", "output": "6"}]'
    assert judged(printing, timeout_s=1.0, due=cases) == dict.fromkeys(printing, 0.0)
    honest = "def add(a, b): return a + b"
    assert judged([honest], timeout_s=30.0) == {honest: 1.0}


@pytest.mark.parametrize("text", PLAIN + MATHEMATICS)
def test_the_calculator_ends_at_once_whatever_it_is_given(text: str) -> None:
    try:
        assert len(calculate(text)) < 400
    except NotArithmetic as error:
        assert str(error)


@pytest.mark.parametrize(
    "said",
    [
        "<answer>__import__('os')</answer>",
        "<answer>{answer} or so: 0</answer>",
        "<result>{answer}</result> <answer></answer>",
        "<answer>0</answer><answer>{answer}</answer>",
        "<tool>calculator __import__('os')._exit(0)</tool>",
        "<tool>answer {answer}</tool>",
        "nan",
    ],
)
def test_no_trick_with_tool_calls_is_paid(said: str) -> None:
    environment = make_environment(EnvironmentSpec(name="tools"), seed=0, data_folder=None)
    prompt = environment.prompt("train", 0)
    answered = environment.respond(prompt, [Turn(text=said.format(answer=prompt.facts["answer"]))])
    assert isinstance(answered, Observation) or (isinstance(answered, Verdict) and answered.reward == 0.0)


@pytest.mark.parametrize("said", ["nan", "1e308", "", "٣", " 3 → " * 10_000, "9" * 5_000, "\x00", "{due}" * 2])
@pytest.mark.parametrize("name", ["running_sums", "tool_sums"])
def test_no_text_forges_a_sum(name: str, said: str) -> None:
    params: dict[str, str | int | float | bool] = {"turns": 1} if name == "tool_sums" else {}
    environment = make_environment(EnvironmentSpec(name=name, params=params), seed=0, data_folder=None)
    prompt = environment.prompt("train", 0)
    answered = environment.respond(prompt, [Turn(text=said.format(due=prompt.facts["terms"]))])
    assert isinstance(answered, Verdict) and answered.reward == 0.0
