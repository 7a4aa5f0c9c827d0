"""No answer that ignores its question earns more than guessing: reasoning-gym's tasks, and the built-in verifiers.

*Guessing's level* of a task is the share of questions that one expected answer is right for, counted anew in each run:
1/2 for a coin. reasoning-gym pays a wrong answer in the right form a little; that is at most a tenth on average.
"""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from tempfile import TemporaryDirectory

import pytest

from engine.environments.gym import ReasoningGym
from engine.environments.judging.verifiers import make_verifier
from engine.environments.params import ParamReader
from engine.spec.environments.params import REFUSED_TASKS, wrong_params
from tests.engine.environments import gym_guesses
from tests.engine.environments.sandboxed import sandbox
from tests.engine.environments.test_forgeries import INSIDE, REPAIRED, judged

__all__ = ["sandbox"]
FOR_ITS_FORM = 0.1
SLOW = ("intermediate_integration", "knight_swap", "simple_integration")
"""Their scorers take a tenth of a second for an answer."""


def _run(*command: str) -> list[str]:
    environment = {**os.environ, "PYTHONPATH": str(INSIDE), "PYTHONHASHSEED": "0"}
    with TemporaryDirectory() as folder:  # some questions' own programs write files
        python = [sys.executable, *command]
        done = subprocess.run(python, env=environment, cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def tasks() -> list[str]:
    """All that a job may train."""
    offered = json.loads(_run("-c", "import json, gym\nprint(json.dumps(gym.tasks()))")[-1])
    assert set(REPAIRED) | set(REFUSED_TASKS) < set(offered) and len(offered) > 100
    return [task for task in offered if task not in REFUSED_TASKS]


def overpaid(names: list[str], num_questions: int) -> dict[str, object]:
    """Tasks where an answer earns more than guessing, or where an expected answer is not paid in full."""
    lines = [json.loads(line) for line in _run(gym_guesses.__file__, ",".join(names), str(num_questions))]
    assert [task for task, *_ in lines] == names
    return {
        task: {"level": level, "answer": best, "mean": mean, "least honest": honest}
        for task, level, best, mean, honest in lines
        if mean > level + (1 - level) * FOR_ITS_FORM or honest < 1.0
    }


@pytest.mark.long
@pytest.mark.parametrize("part", range(4))
def test_no_guess_is_paid_by_any_task(part: int) -> None:
    """The repaired tasks are among them."""
    assert overpaid([task for task in tasks()[part::4] if task not in SLOW], 24) == {}


@pytest.mark.long
def test_no_guess_is_paid_by_a_slow_task() -> None:
    assert overpaid(list(SLOW), 6) == {}


def test_task_that_a_guess_solves_is_refused() -> None:
    """At submission, and in the engine."""
    params = {"task": "propositional_logic"}
    [(field, error)] = wrong_params("reasoning_gym", params)
    assert field == "task" and "propositional_logic cannot be trained: one answer, (P ∨ Q)" in error
    with pytest.raises(ValueError, match="propositional_logic cannot be trained"):
        ReasoningGym.from_params(0, params, 30.0)


FORMS = {
    "coin_flip": [("float(Fraction(answer)) + 5e-5", 1.0), ("Fraction(answer)", 1.0), ("Fraction(answer) + 1", 0.01)],
    "game_of_life": [("answer.replace(',', ', ')", 1.0), ("answer.replace('0', '1')", 0.01), ("answer[:-1]", 0.0)],
    "game_of_life_halting": [("answer.lower()", 1.0), ("'not ' + answer", 0.01)],
    "mini_sudoku": [("answer.replace(' ', ',')", 0.9), ("answer[:-1] + '0'", 0.01), ("answer[::-1]", 0.01)],
    "puzzle24": [("f'({answer})'", 1.0), ("answer.replace(' ', '')", 1.0), ("'6+6+6+6'", 0.01), ("'4! + 0*7*8'", 0.01)],
    "rectangle_count": [("answer + ' '", 1.0), ("int(answer) + 1", 0.01)],
    "sudoku": [("answer.replace(' ', '|')", 0.9), ("answer[:-1] + '0'", 0.01), ("answer[::-1]", 0.01)],
    "time_intervals": [("answer + ' '", 1.0), ("'1' + answer", 0.01)],
}
"""Answers made of the expected one, and the most that they may earn. Right ones earn what the library pays."""


@pytest.mark.long
def test_right_answers_in_other_forms_keep_their_scores() -> None:
    code = f"""
from fractions import Fraction
found = []
for task, forms in {FORMS!r}.items():
    for index in range(4):
        dataset, entry = gym._made(task, "{{}}", index)
        gym.read_instead_of_evaluating(task)
        for form, most in forms:
            text = str(eval(form, dict(answer=entry["answer"], Fraction=Fraction)))
            ours, theirs = gym.scored_as(task, dataset, text, entry), dataset.score_answer(text, entry)
            if not (ours == theirs >= most if most > 0.5 else ours <= most):
                found.append((task, index, text, ours, theirs))
print(json.dumps(found))
"""
    assert json.loads(_run("-c", f"import json, gym\n{code}")[-1]) == []


@pytest.mark.soak
def test_no_guess_is_paid_over_many_questions() -> None:
    assert overpaid(tasks(), 40) == {}


DUE = {
    "exact": ["42", "blue", "x = 0!", "[2, 1]", "N O"],
    "numeric": ["42", "7", "-31", "1/3", "2.5e3"],
    "regex": ["^4[0-9]$", "^blue$", r"\bfox\b", "^7$", r"^\d{3}$"],
    "math_verify": ["42", r"$\frac{1}{3}$", "$(7, 8)$"],
}


@pytest.mark.long
@pytest.mark.sandbox
@pytest.mark.parametrize("name", DUE)
def test_no_guess_is_paid_by_a_verifier(sandbox: None, name: str) -> None:
    """Questions with different answers: guessing's level is one in as many."""
    verify = make_verifier(ParamReader("jsonl", {"verifier": name}), timeout_s=30.0)
    texts = (*gym_guesses.GUESSES, *DUE[name])
    with ThreadPoolExecutor(2) as threads:
        num_paid = threads.map(lambda text: sum(verify(due, text).reward for due in DUE[name]), texts)
        assert {text[:40]: num for text, num in zip(texts, num_paid, strict=True) if num > 1} == {}


@pytest.mark.long
@pytest.mark.sandbox
def test_no_guess_is_paid_by_unit_tests(sandbox: None) -> None:
    programs = [*gym_guesses.GUESSES, "def f(x): return 0", "def f(x): return x", "def f(*_): return True"]
    due = "assert f(2) == 4\nassert f(3) == 9\nassert f(0) == 0"
    assert judged(programs, timeout_s=5.0, due=due) == dict.fromkeys(programs, 0.0)
