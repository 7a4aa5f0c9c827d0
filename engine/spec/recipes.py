"""Recipes: the differences between algorithms and their default values, one row per algorithm.

    name          advantage                       ratio      beyond the clip      mean over
    grpo          group's mean and deviation      token      no gradient          sequences, then their tokens
    dr_grpo       group's mean                    token      no gradient          tokens, over a constant length
    dapo          group's mean and deviation      token      no gradient          tokens
    gspo          group's mean and deviation      sequence   no gradient          sequences, then their tokens
    cispo         group's mean and deviation      token      the clip's weight    tokens
    rloo          mean of the others              token      no gradient          tokens
    reinforce_pp  rewards to go, whitened         token      no gradient          tokens
    ppo           critic and GAE, whitened        token      no gradient          tokens

Each row names the source of its clip. If a paper gives no value, the row names whose value is used instead.

DAPO's other parts are elsewhere: its penalty for long answers in `advantages.overlong_penalty`, its dynamic sampling
where prompts are dealt. RLOO's authors sum over an answer's tokens and take the mean over answers: the same direction
as the mean over tokens, times the mean length.

The default correction is a truncated importance weight, because the default schedule trains on answers that are several
versions old. AReaL (arXiv 2505.24298, table 2) measured the cost of no correction: on AIME24 the plain PPO objective
fell from 42.0 to 23.3 with answers of up to 4 versions, and an objective that weighs tokens by their age kept 42.2. A
cap of 2 is the usual one (TRL's and ms-swift's example). CISPO needs no correction: its clip is a truncated importance
weight.
"""

from dataclasses import dataclass
from typing import Final, Literal

AlgorithmName = Literal["grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo", "reinforce_pp", "ppo"]
CorrectionName = Literal["none", "truncated", "masked", "icepop", "decoupled", "a3po", "aipo"]
Advantage = Literal["group_std", "group_mean", "leave_one_out", "rewards_to_go", "critic"]
Mean = Literal["sequences", "tokens", "constant"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    advantage: Advantage
    ratio: Literal["token", "sequence"] = "token"
    beyond_clip: Literal["stop", "weigh"] = "stop"
    """stop: min(r·A, clip(r)·A), whose gradient vanishes. weigh: clip(r)·A·log π, where clip(r) is a constant."""
    mean: Mean = "tokens"
    clip_low: float = 0.2
    clip_high: float = 0.2
    """How far the ratio may be below and above 1."""
    clip_source: str
    correction: CorrectionName = "truncated"

    @property
    def has_group_baseline(self) -> bool:
        return self.advantage in ("group_std", "group_mean", "leave_one_out")


RECIPES: Final[dict[AlgorithmName, Recipe]] = {
    "grpo": Recipe(
        advantage="group_std",
        mean="sequences",
        clip_source="DeepSeekMath (arXiv 2402.03300) names no value; PPO's, as in TRL",
    ),
    "dr_grpo": Recipe(
        advantage="group_mean",
        mean="constant",
        clip_source="Dr. GRPO (arXiv 2503.20783) changes baseline and mean, not the clip; PPO's, as in TRL",
    ),
    "dapo": Recipe(advantage="group_std", clip_high=0.28, clip_source="DAPO (arXiv 2503.14476), section 4.1"),
    "gspo": Recipe(
        advantage="group_std",
        ratio="sequence",
        mean="sequences",
        clip_low=3e-4,
        clip_high=4e-4,
        clip_source="GSPO (arXiv 2507.18071), section 5.1; a whole sequence's mean ratio moves far less than a token's",
    ),
    "cispo": Recipe(
        advantage="group_std",
        beyond_clip="weigh",
        clip_low=1.0,
        clip_high=4.0,
        correction="none",
        clip_source="MiniMax-M1 (arXiv 2506.13585) has no lower bound and does not name its upper one; weights up to "
        "5, as TRL recommends after ScaleRL (arXiv 2510.13786)",
    ),
    "rloo": Recipe(
        advantage="leave_one_out", clip_source="RLOO (arXiv 2402.14740) clips nothing; PPO's, as in TRL's RLOO"
    ),
    "reinforce_pp": Recipe(
        advantage="rewards_to_go", clip_source="REINFORCE++ (arXiv 2501.03262) has PPO's clip; PPO's value"
    ),
    "ppo": Recipe(advantage="critic", clip_source="PPO (arXiv 1707.06347), the best of its table 1"),
}


def own_clips(side: Literal["clip_low", "clip_high"]) -> str:
    """The algorithms' defaults for the documentation, such as `0.2 (grpo, ppo); 0.28 (dapo)`."""
    names: dict[float, list[str]] = {}
    for name, recipe in RECIPES.items():
        names.setdefault(getattr(recipe, side), []).append(name)
    return "; ".join(f"{value:g} ({', '.join(its)})" for value, its in names.items())
