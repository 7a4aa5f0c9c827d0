"""What a rank rounds to bfloat16: its own rows, before each gather, and never a whole weight."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from engine.models.families.trained_model import read_model_config
from engine.training.fsdp.copies import Copies
from engine.training.fsdp.division import Division
from engine.training.parts.layout import own_part
from engine.training.ranks.passes import PolicyPass
from tests.engine.conftest import MakeLlama
from tests.engine.fit.measured.divided_rank import one_of
from tests.engine.training.fsdp.test_ranks import micro_batch
from tests.engine.training.ranks.two_ranks import settings_for

NUM_RANKS = 4

pytestmark = pytest.mark.usefixtures("one_thread")


class RoundedRows(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the values that FSDP rounds while it collects what a rank gives to a gather."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, call: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        name = call.overloadpacket.__name__
        if name == "_foreach_copy_":
            rounded, exact = given
            assert {each.dtype for each in rounded} == {torch.bfloat16} and {each.dtype for each in exact} == {
                torch.float32
            }
            self.counts["values"] += sum(each.numel() for each in exact)
        self.counts["gathers"] += name == "_allgather_base_"
        return call(*given, **(named or {}))


@pytest.mark.parametrize("activations", ["kept", "recomputed"])
def test_a_rank_rounds_its_rows_twice_a_micro_batch(make_llama: MakeLlama, activations: str) -> None:
    with one_of(NUM_RANKS) as world:
        copies = Copies.of([list(range(NUM_RANKS))], own_rank=0)
        division = Division(world, torch.device("cpu"), torch.bfloat16, copies)
        model = division.empty_model(read_model_config(make_llama()))
        model.hold_activations(activations)  # type: ignore[arg-type]
        whole_pass = PolicyPass(model, settings_for("whole", compute_dtype="bfloat16"))
        division.divide(whole_pass, model)
        rows = sum(own_part(each).numel() for each in model.parameters())
        with RoundedRows() as rounded:
            whole_pass(micro_batch())[0].sum().backward()
    assert rounded.counts["gathers"] == 2 * (len(model.layers) + 1)
    assert rounded.counts["values"] == 2 * rows
