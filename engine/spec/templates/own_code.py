"""Running sums over several turns: after each answer one more number is added.

prompt   returns a question. The same arguments must give the same question; no question may be in both splits.
respond  returns the next observation or, at the end, the reward.
"""

import random
import re

NUM_TURNS = 3


def prompt(split: str, ordinal: int, seed: int, params: dict[str, object]) -> dict[str, object]:
    rng = random.Random(f"{seed}/{split}/{ordinal}")
    while True:
        first = [rng.randint(1, 9) for _ in range(3)]
        if (sum(first) % 8 == 0) == (split == "held_out"):
            break
    later = [rng.randint(1, 9) for _ in range(NUM_TURNS - 1)]
    return {
        "text": " + ".join(map(str, first)) + " =",
        "facts": {"start": sum(first), "later": " ".join(map(str, later))},
    }


def respond(prompt: dict[str, dict[str, str]], turns: list[str]) -> dict[str, object]:
    later = [int(term) for term in prompt["facts"]["later"].split()]
    if len(turns) < NUM_TURNS:
        return {"observation": f" + {later[len(turns) - 1]} ="}
    due = [int(prompt["facts"]["start"]) + sum(later[:number]) for number in range(NUM_TURNS)]
    answers = [re.findall(r"\d+", turn)[-1:] for turn in turns]
    right = [answer == [str(total % 100)] for answer, total in zip(answers, due, strict=True)]
    return {
        "reward": sum(right) / NUM_TURNS,
        "parts": {"first_right": float(right[0]), "last_right": float(right[-1])},
        "remark": f"{sum(right)} of {NUM_TURNS} turns are right",
    }
