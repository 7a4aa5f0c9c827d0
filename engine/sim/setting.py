"""The setting that all bodies of one run share."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from engine.pipeline.plan import Plan
from engine.pipeline.records import SampleKey
from engine.sim.fault_costs import Costs
from engine.sim.faults import Faults
from engine.sim.hosts import Hosts
from engine.sim.oracle.pipeline import Oracle

ASK_AGAIN_S: Final = 0.25
"""The retry interval for an environment that does not answer."""


@dataclass(slots=True, kw_only=True)
class Setting:
    seed: int
    plan: Plan
    costs: Costs
    faults: Faults
    oracle: Oracle
    start_step: int = 0
    """The step of the checkpoint that the run begins with."""
    base_is_due: bool = False
    """No attempt before this one has evaluated version 0."""
    hosts: Hosts | None = None
    """None: placement is not simulated."""
    environment_answers: Callable[[SampleKey], bool] = lambda key: True
    """Whether this sample's environment worker answers."""
    hung: set[SampleKey] = field(default_factory=set)
    """Samples that hung once; they do not hang again."""
