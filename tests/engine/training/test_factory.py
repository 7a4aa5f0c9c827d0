"""The choice of a trainer's sharding."""

import pytest

from engine.spec.job import TrainerSpec
from engine.training.factory import choose_sharding
from engine.training.fsdp.sharding import FsdpSharding
from engine.training.sharding import MakeSharding
from engine.training.whole.sharding import WholeSharding
from engine.training.zero.sharding import ZeroSharding


@pytest.mark.parametrize(
    ("backend", "has_ranks", "expected"),
    [
        ("torch", False, WholeSharding),
        ("torch", True, FsdpSharding),
        ("deepspeed", False, ZeroSharding),
        ("deepspeed", True, ZeroSharding),
    ],
)
def test_backend_and_ranks_choose_the_sharding(backend: str, has_ranks: bool, expected: MakeSharding) -> None:
    spec = TrainerSpec.model_validate({"backend": backend})
    assert choose_sharding(spec, has_ranks=has_ranks) is expected
