"""EvaluationSpec: how many held-out prompts are answered, when, and how their answers are sampled."""

from dataclasses import dataclass, fields, replace
from typing import Final

from pydantic import Field

from engine.spec.settings.conditional import conditional
from engine.spec.strict import Strict

MAX_ANSWERS: Final = 2**18
"""Answers of one evaluation: about 80 MB of rewards and lengths, which the data part keeps until its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSampling:
    """How tokens are sampled: `rollout` sets it for training, `evaluation` for held-out answers."""

    temperature: float
    """0: greedy."""
    top_p: float
    top_k: int
    min_p: float

    @property
    def cuts(self) -> bool:
        """Whether unlikely tokens are left out, which requires sorting the vocabulary."""
        return self.temperature > 0 and (self.top_p < 1.0 or self.top_k > 0 or self.min_p > 0.0)


class EvaluationSpec(Strict):
    prompts: int = Field(
        256,
        ge=1,
        le=65_536,
        description="Held-out prompts, answered with the initial weights (in parallel with training) and the last.",
    )
    every: int = Field(
        0,
        ge=0,
        le=1_000_000,
        description="Also evaluate each time this many steps are trained; 0: only initial and final weights.",
    )
    samples: int = conditional(
        1,
        "evaluation.samples",
        "Answers per held-out prompt: k of avg@k and pass@k.",
        ge=1,
        le=256,
    )
    pass_mark: float = Field(
        1.0,
        ge=-1e9,
        le=1e9,
        description="The least reward of an answer that passes. pass@k is the share of prompts with an answer that "
        "passes.",
    )
    temperature: float | None = Field(
        None, ge=0, le=4, description="For held-out answers; 0: greedy. Empty: rollout.temperature."
    )
    top_p: float | None = conditional(
        None, "evaluation.top_p", "For held-out answers. Empty: rollout.top_p.", gt=0, le=1
    )
    top_k: int | None = conditional(
        None, "evaluation.top_k", "For held-out answers; 0: all tokens. Empty: rollout.top_k.", ge=0, le=1_000_000
    )
    min_p: float | None = conditional(
        None, "evaluation.min_p", "For held-out answers. Empty: rollout.min_p.", ge=0, lt=1
    )

    def sampling(self, otherwise: TokenSampling) -> TokenSampling:
        """These settings; `otherwise` supplies the empty ones."""
        given = {each.name: getattr(self, each.name) for each in fields(TokenSampling)}
        return replace(otherwise, **{name: value for name, value in given.items() if value is not None})
