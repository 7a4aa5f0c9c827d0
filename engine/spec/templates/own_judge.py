"""What an answer is worth: all for the right sum, a little for a sum that is off by one number."""

import re


def respond(prompt: dict[str, dict[str, str]], turns: list[str]) -> dict[str, object]:
    due = int(prompt["facts"]["answer"])
    numbers = re.findall(r"\d+", turns[-1])
    if not numbers:
        return {"reward": 0.0, "remark": "no number was said"}
    distance = abs(int(numbers[-1]) - due)
    reward = 1.0 if distance == 0 else 0.2 if distance < 10 else 0.0
    return {"reward": reward, "remark": f"said {numbers[-1]}, the sum is {due}"}
