"""Mean rewards of answers that ignore the question, for tasks of reasoning-gym as we judge them.

    gym_guesses.py TASK,TASK… QUESTIONS        one line of JSON for each task

Run with the files of sandbox/inside on the path, outside the sandbox: nothing here is hostile. Every guess, and every
question's own answer, is given to all questions of its task.
"""

import contextlib
import io
import json
import os
import signal
import sys
from collections import Counter
from fractions import Fraction
from itertools import pairwise
from typing import Any

MOST_CPU_S = 5.0
GUESSES = (
    "", "0", "1", "-1", "2", "3", "4", "5", "10", "24", "100", "0.5", "1/2", "nan", "inf", "0" * 400, "1 " * 400,
    "True", "False", "yes", "no", "possible", "impossible", "None", "null", "I do not know.", "A", "B", "x", "x = 0",
    "Monday", "North", "knight", "the", "[]", "{}", "()", "[0]", "[[0]]", "[1, 2, 3]", "1 2 3", "0 0\n0 0", '{"a": 1}',
    "6+6+6+6", "(1 + 1) * 12", "00:00", "12:00:00", "1 days", "abcdefghijklmnopqrstuvwxyz " * 20,
)  # fmt: skip
SOLUTIONS = {"graph_color": "possible_answer", "rubiks_cube": "example_correct_answer"}
"""Where the library keeps an answer if the question has many."""


def _sweep() -> str:
    """A plan for any grid of boxnet with 2 by 3 squares: every box goes through all of them, and is put down wherever
    it may be."""
    squares = [(0, 0), (0, 1), (0, 2), (1, 2), (1, 1), (1, 0)]
    there_and_back = [*pairwise(squares), *pairwise(reversed(squares))]
    plan = []
    for (row, column), (to_row, to_column) in 2 * there_and_back:
        agent = f"Agent[{row}.5, {column}.5]"
        for color in ("blue", "red", "green", "purple", "orange"):
            plan.append({agent: f"move(box_{color}, target_{color})"})
            plan.append({agent: f"move(box_{color}, square[{to_row}.5, {to_column}.5])"})
    return json.dumps(plan)


def guesses_of(task: str) -> tuple[str, ...]:
    return (*GUESSES, _sweep()) if task == "boxnet" else GUESSES


def guessing_level(task: str, entries: list[Any], answers: list[str]) -> float:
    """The share of questions that the best of all expected answers is right for: who knows the task, and not the
    question, is right as often. Not by the library's scorer."""
    if task == "graph_color":
        return max(sum(_is_colored(entry, answer) for entry in entries) for answer in answers) / len(entries)
    known = [_as_value(answer) for answer in answers if answer != "None"]
    return Counter(known).most_common(1)[0][1] / len(answers) if known else 0.0


def _is_colored(entry: Any, answer: str) -> bool:
    puzzle, colors = entry["metadata"]["puzzle"], json.loads(answer)
    return all(colors[str(one)] != colors[str(other)] for one, other in puzzle["edges"])


def _plan(entry: Any) -> str:
    """Carries every box of boxnet to its target, rows first."""
    squares = {name: tuple(map(float, name.split("_"))) for name in entry["metadata"]["initial_state"]}
    things = {thing: squares[name] for name, each in entry["metadata"]["initial_state"].items() for thing in each}
    plan = []
    for box, (row, column) in things.items():
        target = box.replace("box_", "target_")
        if box == target:
            continue
        while (row, column) != things[target]:
            here, (to_row, to_column) = f"Agent[{row}, {column}]", things[target]
            if row != to_row:
                row += 1 if to_row > row else -1
            else:
                column += 1 if to_column > column else -1
            plan.append({here: f"move({box}, square[{row}, {column}])"})
        plan.append({f"Agent[{row}, {column}]": f"move({box}, {target})"})
    return json.dumps(plan)


def _answer_to(task: str, entry: Any) -> str:
    if task == "boxnet":
        return _plan(entry)
    solution = entry["metadata"].get(SOLUTIONS.get(task))
    return str(entry["answer"]) if solution is None else solution if isinstance(solution, str) else json.dumps(solution)


def _as_value(answer: str) -> object:
    text = " ".join(answer.lower().split())
    try:
        return Fraction(text)
    except (ValueError, ZeroDivisionError):
        return text


def main() -> None:
    tasks, num_questions = sys.argv[1].split(","), int(sys.argv[2])
    import gym  # type: ignore[import-not-found]

    signal.signal(signal.SIGVTALRM, _late)
    for task in tasks:
        sys.stdout.flush()
        if os.fork() == 0:  # a process a task, so that its memory and the judge's changes end with it
            _print_means(gym, task, num_questions)
            sys.stdout.flush()
            os._exit(0)
        if os.wait()[1] != 0:
            raise SystemExit(f"{task}: its process died")


def _print_means(gym: Any, task: str, num_questions: int) -> None:
    with contextlib.redirect_stdout(io.StringIO()):  # one task prints dots
        made = [gym._made(task, "{}", index) for index in range(num_questions)]
        gym.warm_up(task, "{}")
    for _, entry in made:
        gym._OWN_TEXTS.update(gym.texts_of(entry))
    answers = [_answer_to(task, entry) for _, entry in made]
    scores = {
        text: [_scored(gym, task, index, made[index], text.strip()) for index in range(num_questions)]
        for text in dict.fromkeys((*guesses_of(task), *answers))
    }
    means = {text: sum(each) / num_questions for text, each in scores.items()}
    best = max(means, key=lambda text: means[text])
    honest = [scores[answer][index] for index, answer in enumerate(answers) if answer != "None"]
    print(
        json.dumps(
            [
                task,
                guessing_level(task, [entry for _, entry in made], answers),
                best[:60],
                means[best],
                min(honest, default=1.0),
            ]
        )
    )


def _scored(gym: Any, task: str, index: int, made: tuple[Any, Any], text: str) -> float:
    dataset, entry = made
    dataset.seed = dataset.config.seed = index  # most of a task's questions share one
    signal.setitimer(signal.ITIMER_VIRTUAL, MOST_CPU_S)
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            scored = float(gym.scored_as(task, dataset, text, entry))
        except Exception:  # noqa: BLE001 - such an answer has reward 0
            scored = 0.0
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return scored if 0 <= scored <= 1 else 0.0


def _late(*_: object) -> None:
    raise TimeoutError


if __name__ == "__main__":
    main()
