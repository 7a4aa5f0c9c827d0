"""OptimizerSpec: how AdamW moves the weights, and how its step size goes on over a job."""

from typing import Literal

from pydantic import Field

from engine.spec.knob_effects import knob
from engine.spec.strict import Strict


class OptimizerSpec(Strict):
    learning_rate: float = Field(
        3e-4, gt=0, le=1, description="AdamW's step size. Left out: by the model; 0.0003 of a small one."
    )
    warmup_steps: int = Field(5, ge=0, le=100_000, description="Steps over which the learning rate rises from zero.")
    course: Literal["constant", "cosine", "linear"] = knob(
        "constant",
        "optimizer.course",
        "How the learning rate goes on after its warm-up, until the last of training.steps. A job that begins at a "
        "checkpoint is at that step of its own course.",
    )
    # A tenth: a step costs its rollouts in full, so none is spent on a rate of nearly nothing.
    final_share: float = knob(
        0.1, "optimizer.final_share", "What the learning rate falls to, as a share of its highest.", ge=0, lt=1
    )
    beta1: float = Field(0.9, ge=0, lt=1, description="How much an update keeps of the gradients' running mean.")
    beta2: float = Field(0.999, ge=0, lt=1, description="How much an update keeps of their squares' running mean.")
    eps: float = Field(1e-8, gt=0, le=1, description="Added to the root of that mean before it divides.")
    weight_decay: float = Field(0.0, ge=0, le=1, description="AdamW's decay.")
    max_grad_norm: float = Field(1.0, gt=0, le=1_000, description="Gradients longer than this are scaled down.")
    moments: Literal["float32", "bfloat16", "float8"] = knob(
        "float32",
        "optimizer.moments",
        "What both means are kept in; bfloat16 halves their memory, float8 (of matrices) quarters it, and both round "
        "them by chance, true on average.",
    )
    offload: bool = knob(
        False, "optimizer.offload", "Keep both means in the host's memory; a step fetches them piece by piece."
    )

    @property
    def betas(self) -> tuple[float, float]:
        return self.beta1, self.beta2
