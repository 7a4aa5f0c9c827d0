"""OptimizerSpec: AdamW's settings and its learning-rate schedule."""

from typing import Literal

from pydantic import Field

from engine.spec.settings.conditional import conditional
from engine.spec.strict import Strict


class OptimizerSpec(Strict):
    learning_rate: float = Field(
        3e-4, gt=0, le=1, description="AdamW's step size. Left out: chosen for the model; 0.0003 for a small model."
    )
    warmup_steps: int = Field(5, ge=0, le=100_000, description="Steps over which the learning rate rises from zero.")
    course: Literal["constant", "cosine", "linear"] = conditional(
        "constant",
        "optimizer.course",
        "The learning-rate schedule between warm-up and the last of training.steps. A job that resumes from a "
        "checkpoint continues at the checkpoint's step.",
    )
    # A tenth: every step pays for its rollouts, so none should be spent on a learning rate near zero.
    final_share: float = conditional(
        0.1, "optimizer.final_share", "The final learning rate, as a share of the highest.", ge=0, lt=1
    )
    beta1: float = Field(0.9, ge=0, lt=1, description="Decay of the running mean of gradients.")
    beta2: float = Field(0.999, ge=0, lt=1, description="Decay of the running mean of squared gradients.")
    eps: float = Field(1e-8, gt=0, le=1, description="AdamW's epsilon, added to the denominator.")
    weight_decay: float = Field(0.0, ge=0, le=1, description="AdamW's weight decay.")
    max_grad_norm: float = Field(1.0, gt=0, le=1_000, description="Gradients with a larger norm are scaled down to it.")
    moments: Literal["float32", "bfloat16", "float8"] = conditional(
        "float32",
        "optimizer.moments",
        "Data type of both running means. bfloat16 halves their memory, float8 (matrices only) quarters it; both use "
        "stochastic rounding, which is unbiased.",
    )
    offload: bool = conditional(
        False, "optimizer.offload", "Keep both running means in host memory; a step fetches them piece by piece."
    )

    @property
    def betas(self) -> tuple[float, float]:
        return self.beta1, self.beta2
