"""What tells one algorithm from another: a row of a table.

    name          advantage                       ratio      beyond the clip      mean over
    grpo          group's mean and deviation      token      no gradient          sequences, then their tokens
    dr_grpo       group's mean                    token      no gradient          tokens, over a constant length
    dapo          group's mean and deviation      token      no gradient          tokens
    gspo          group's mean and deviation      sequence   no gradient          sequences, then their tokens
    cispo         group's mean and deviation      token      the clip's weight    tokens
    rloo          mean of the others              token      no gradient          tokens
    reinforce_pp  rewards to go, whitened         token      no gradient          tokens
    ppo           critic and GAE, whitened        token      no gradient          tokens

DAPO's other parts lie elsewhere: its asymmetric clip in the spec, its penalty for long answers in
`advantages.overlong_penalty`, its dynamic sampling with whoever deals prompts. RLOO's authors sum over an answer's
tokens and take the mean over answers: the same direction as the mean over tokens, times the mean length.
"""

from dataclasses import dataclass
from typing import Final, Literal

from engine.spec.job import AlgorithmName

Advantage = Literal["group_std", "group_mean", "leave_one_out", "rewards_to_go", "critic"]
Mean = Literal["sequences", "tokens", "constant"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    advantage: Advantage
    ratio: Literal["token", "sequence"] = "token"
    beyond_clip: Literal["stop", "weigh"] = "stop"
    """stop: min(r·A, clip(r)·A), whose gradient vanishes. weigh: clip(r)·A·log π with the clip as a constant."""
    mean: Mean = "tokens"


RECIPES: Final[dict[AlgorithmName, Recipe]] = {
    "grpo": Recipe(advantage="group_std", mean="sequences"),
    "dr_grpo": Recipe(advantage="group_mean", mean="constant"),
    "dapo": Recipe(advantage="group_std"),
    "gspo": Recipe(advantage="group_std", ratio="sequence", mean="sequences"),
    "cispo": Recipe(advantage="group_std", beyond_clip="weigh"),
    "rloo": Recipe(advantage="leave_one_out"),
    "reinforce_pp": Recipe(advantage="rewards_to_go"),
    "ppo": Recipe(advantage="critic"),
}
