"""Scores of honest and wrong answers, by reasoning-gym's own scorers or by our judge.

    gym_corpus.py TASK,TASK… QUESTIONS WRONG ours|theirs        one line of JSON for each task

Run with the files of sandbox/inside on the path, outside the sandbox: nothing here is hostile. Both sides get the same
texts in the same order; `theirs` is the installed library, unmodified.
"""

import contextlib
import io
import json
import os
import random
import signal
import sys
import time
from typing import Any

LATE = "late"
MOST_CPU_S = 5.0  # a slip may make a number of a million digits; a later score is not compared
FILLERS = ("I do not know.", "The answer is unclear", "0", "1", "-1", "None", "True", "x", "[]", "{}", "1, 2", "A", "")
ENDS = (".", " + C", " + 1", "0", " = 24", ")", "\n", " # done", "**2", " units", "]", ";")


def wrong(answer: str, rng: random.Random) -> str:
    """A slip like a model's: a letter dropped, doubled or replaced, or a wrong end."""
    if not answer or rng.random() < 0.15:
        return rng.choice(FILLERS)
    at = rng.randrange(len(answer))
    match rng.randrange(6):
        case 0:
            return answer[:at] + answer[at + 1 :]
        case 1:
            return answer[: at + 1] + answer[at:]
        case 2:
            return answer[:at] + rng.choice("0123456789+-*/()[], xyCE") + answer[at + 1 :]
        case 3:
            return answer[at:] + answer[:at]
        case 4:
            return answer + rng.choice(ENDS)
        case _:
            return f"The answer is {answer}"


def answers_to_score(answers: list[str], num_wrong: int, rng: random.Random) -> list[tuple[int, str]]:
    """Pairs of question and answer: the right one to each, and `num_wrong` wrong ones in all."""
    pairs = list(enumerate(answers))
    for at in range(num_wrong):
        said = rng.choice(answers) if rng.random() < 0.1 else wrong(answers[at % len(answers)], rng)
        pairs.append((at % len(answers), said))
    return sorted(((index, said.strip()) for index, said in pairs), key=lambda pair: pair[0])


def main() -> None:
    tasks, num_questions, num_wrong, side = sys.argv[1].split(","), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    import gym  # type: ignore[import-not-found]

    signal.signal(signal.SIGVTALRM, _late)
    for task in tasks:
        sys.stdout.flush()
        if os.fork() == 0:  # a process a task, so that its memory and the judge's changes end with it
            _print_scores(gym, task, num_questions, num_wrong, is_ours=side == "ours")
            sys.stdout.flush()
            os._exit(0)
        if os.wait()[1] != 0:
            raise SystemExit(f"{task}: its process died")


def _print_scores(gym: Any, task: str, num_questions: int, num_wrong: int, *, is_ours: bool) -> None:
    with contextlib.redirect_stdout(io.StringIO()):  # one task prints dots
        made = [gym._made(task, "{}", index) for index in range(num_questions)]
    answers = [str(entry["answer"]) for _, entry in made]
    pairs = answers_to_score(answers, num_wrong, random.Random(f"gym_corpus/{task}"))
    if is_ours:
        with contextlib.redirect_stdout(io.StringIO()):
            gym.warm_up(task, "{}")
        own_texts = [text for _, entry in made for text in gym.texts_of(entry)]
        gym._OWN_TEXTS.update(own_texts)
        gym.Judging(own_texts=own_texts, cpu_s=1e6)
    scores = []
    for index, said in pairs:
        dataset, entry = made[index]
        dataset.seed = dataset.config.seed = index  # most of a task's questions share one
        judge = (lambda dataset, said, entry: gym.scored_as(task, dataset, said, entry)) if is_ours else _theirs
        scores.append(_scored(judge, dataset, entry, said))
    print(json.dumps([task, scores, [said for _, said in pairs]]))


def _theirs(dataset: Any, said: str, entry: Any) -> float:
    return float(dataset.score_answer(said, entry))


def _scored(judge: Any, dataset: Any, entry: Any, said: str) -> float | str:
    signal.setitimer(signal.ITIMER_VIRTUAL, MOST_CPU_S)
    began = time.process_time()
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            scored: float | str = judge(dataset, said, entry)
        except Exception as error:  # noqa: BLE001 - exceptions of both sides are compared too
            scored = type(error).__name__
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return LATE if time.process_time() - began > MOST_CPU_S else scored


def _late(*_: object) -> None:
    raise TimeoutError


if __name__ == "__main__":
    main()
