"""The reward of an answer: 1 for the right sum, 0.2 for a sum that is off by less than 10."""

import re


def respond(prompt: dict[str, dict[str, str]], turns: list[str]) -> dict[str, object]:
    due = int(prompt["facts"]["answer"])
    numbers = re.findall(r"\d+", turns[-1])
    if not numbers:
        return {"reward": 0.0, "remark": "the answer has no number"}
    distance = abs(int(numbers[-1]) - due)
    reward = 1.0 if distance == 0 else 0.2 if distance < 10 else 0.0
    return {"reward": reward, "remark": f"answered {numbers[-1]}, the sum is {due}"}
