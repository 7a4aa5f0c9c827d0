"""Conformance suite of all shardings: what a trainer does is the same with each.

A test module subclasses `ShardingConformance`, named Test…, and provides the fixture `build` (conftest.py).
"""

from tests.engine.training.step.mini_batch_conformance import MiniBatchConformance
from tests.engine.training.trainer_conformance import TrainerConformance
from tests.engine.training.trainer_parts_conformance import PartsConformance


class ShardingConformance(TrainerConformance, PartsConformance, MiniBatchConformance):
    pass
