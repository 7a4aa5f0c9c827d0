"""What reasoning-gym's own scorers say of honest answers and of wrong ones, beside what our judge says.

    gym_corpus.py TASK,TASK… QUESTIONS WRONG ours|theirs        one line of JSON for each task

Run with the files of sandbox/inside on the path, outside the sandbox: nothing here is hostile. Both sides are the same
texts in the same order; `theirs` is the library as it is installed, before anything of ours has touched it.
"""

import contextlib
import io
import json
import random
import signal
import sys
import time
from typing import Any

LATE = "late"
MOST_CPU_S = 5.0  # a slip may ask for a number of a million digits; what is not worked out by then is not compared
FILLERS = ("I do not know.", "The answer is unclear", "0", "1", "-1", "None", "True", "x", "[]", "{}", "1, 2", "A", "")
ENDS = (".", " + C", " + 1", "0", " = 24", ")", "\n", " # done", "**2", " units", "]", ";")


def wrong(answer: str, rng: random.Random) -> str:
    """A slip, as a model makes them: a letter lost, doubled or another one, an end that does not belong there."""
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


def asked(task: str, num_questions: int, num_wrong: int, made: Any) -> list[tuple[Any, str]]:
    """Each question with an answer: the one that is due to every question, then `num_wrong` wrong ones in all."""
    rng = random.Random(f"gym_corpus/{task}")
    questions = [made(task, "{}", index) for index in range(num_questions)]
    answers = [str(entry["answer"]) for _, entry in questions]
    pairs = list(zip(questions, answers, strict=True))
    for at in range(num_wrong):
        said = rng.choice(answers) if rng.random() < 0.1 else wrong(answers[at % num_questions], rng)
        pairs.append((questions[at % num_questions], said))
    return [(question, said.strip()) for question, said in pairs]


def main() -> None:
    tasks, num_questions, num_wrong, side = sys.argv[1].split(","), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    import gym  # type: ignore[import-not-found]

    signal.signal(signal.SIGVTALRM, _late)
    work = {task: asked(task, num_questions, num_wrong, gym._made) for task in tasks}
    if side == "ours":
        for task in tasks:
            gym.warm_up(task, "{}")
        own_texts = [text for pairs in work.values() for (_, entry), _ in pairs for text in gym.texts_of(entry)]
        gym._OWN_TEXTS.update(own_texts)
        gym.Judging(own_texts=own_texts, cpu_s=1e6)
    for task, pairs in work.items():
        print(json.dumps([task, [_scored(question, said) for question, said in pairs], [said for _, said in pairs]]))
        sys.stdout.flush()


def _scored(made: Any, said: str) -> float | str:
    dataset, entry = made
    signal.setitimer(signal.ITIMER_VIRTUAL, MOST_CPU_S)
    began = time.process_time()
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            scored: float | str = float(dataset.score_answer(said, entry))
        except Exception as error:  # noqa: BLE001 - what either side raises is compared too
            scored = type(error).__name__
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return LATE if time.process_time() - began > MOST_CPU_S else scored


def _late(*_: object) -> None:
    raise TimeoutError


if __name__ == "__main__":
    main()
