"""One set-up described by a file: any model, devices, split, lengths, batch and schedule.

    {"device": "H800", "model": "7B", "schedule": "laminar", "training": 32, "rollout": 32}

Other settings default to the grid's values. A model that is not in the table is written out.
"""

from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from engine.sim.compare.contestants import CONTESTANTS
from engine.sim.costs.devices import DEVICES
from engine.sim.costs.lengths import LONGEST_RESPONSE, MEDIAN, PROMPT_TOKENS, SIGMA, Lengths
from engine.sim.costs.models import MODELS, Model
from engine.sim.fleet.fleet import Fleet
from engine.sim.fleet.setup import Setup

MOST_DEVICES: Final = 100_000


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelFile(_Strict):
    name: str
    weight_bytes: float = Field(gt=0)
    kv_bytes: float = Field(gt=0)
    num_layers: int = Field(ge=1)
    tensor_parallel: int = Field(ge=1)


class ClusterFile(_Strict):
    device: str
    model: str | ModelFile
    schedule: str
    training: int = Field(ge=1, le=MOST_DEVICES)
    rollout: int = Field(ge=0, le=MOST_DEVICES)
    """0 for a colocated schedule."""
    tensor_parallel: int | None = Field(default=None, ge=1)
    lora_rank: int = Field(default=0, ge=0)
    """0: all weights are trained."""
    workload: Literal["math", "tools"] = "math"
    median_tokens: float = Field(default=MEDIAN.value, gt=0)
    sigma: float = Field(default=SIGMA.value, ge=0)
    prompt_tokens: int = Field(default=int(PROMPT_TOKENS.value), ge=1)
    longest: int = Field(default=LONGEST_RESPONSE, ge=1)
    groups_per_step: int = Field(default=512, ge=1)
    group_size: int = Field(default=16, ge=1)
    mini_batch: int = Field(default=2_048, ge=1)
    max_batch: int = Field(default=256, ge=1)
    steps: int = Field(default=8, ge=1)
    warm_steps: int = Field(default=4, ge=1)
    seed: int = 1

    def setup(self) -> Setup:
        """Raises `ValueError` for names that no table has."""
        for field, value, table in (("device", self.device, DEVICES), ("schedule", self.schedule, CONTESTANTS)):
            if value not in table:
                raise ValueError(f"{field}: must be one of {', '.join(table)}, got {value!r}")
        if isinstance(self.model, str) and self.model not in MODELS:
            raise ValueError(f"model: must be one of {', '.join(MODELS)}, or written out, got {self.model!r}")
        contestant = CONTESTANTS[self.schedule]
        if contestant.is_colocated and self.rollout:
            raise ValueError(f"rollout: {self.schedule} generates on the training devices; must be 0")
        model = MODELS[self.model] if isinstance(self.model, str) else Model(**self.model.model_dump())
        return Setup(
            device=DEVICES[self.device],
            model=model,
            schedule=contestant.schedule,
            train_devices=self.training,
            rollout_devices=self.training if contestant.is_colocated else self.rollout,
            is_colocated=contestant.is_colocated,
            tp=self.tensor_parallel or model.tensor_parallel,
            slots=contestant.slots_with(self.lora_rank),
            lora_rank=self.lora_rank,
            workload=self.workload,
            lengths=Lengths(
                median=self.median_tokens, sigma=self.sigma, prompt=self.prompt_tokens, longest=self.longest
            ),
            seed=self.seed,
            steps=self.steps,
            warm_steps=self.warm_steps,
            groups_per_step=self.groups_per_step,
            group_size=self.group_size,
            mini_batch=self.mini_batch,
            max_batch=self.max_batch,
        )


def simulated(asked: ClusterFile) -> dict[str, Any]:
    setup = asked.setup()
    if setup.why_not:
        return {"fits": False, "why_not": setup.why_not}
    outcome = Fleet(setup).run()
    figures = {name: getattr(outcome, name) for name in outcome.__slots__}
    return {"fits": True, "why_not": "", "actor_stall_s": setup.stall_s, **figures}
