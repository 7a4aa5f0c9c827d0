"""What all bodies of one run share."""

from dataclasses import dataclass, field

from engine.pipeline.plan import Plan
from engine.pipeline.records import SampleKey
from engine.sim.checks import Oracle
from engine.sim.costs import Costs
from engine.sim.faults import Faults


@dataclass(slots=True, kw_only=True)
class Setting:
    seed: int
    plan: Plan
    costs: Costs
    faults: Faults
    oracle: Oracle
    start_step: int = 0
    """Of the checkpoint that the run begins with."""
    hung: set[SampleKey] = field(default_factory=set)
    """Samples that hung once; they do not a second time."""
