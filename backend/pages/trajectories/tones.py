"""The tone of a reward among others, which a page shows as a colour next to the number."""

from collections.abc import Callable, Sequence


def tone_among(rewards: Sequence[float]) -> Callable[[float], str]:
    """By thirds of the usual range of rewards, 0 to 1, or of a wider one if the rewards exceed it."""
    low, high = min([0.0, *rewards]), max([1.0, *rewards])

    def tone_of(reward: float) -> str:
        share = (reward - low) / (high - low)
        return "high" if share > 2 / 3 else "low" if share < 1 / 3 else "middle"

    return tone_of
