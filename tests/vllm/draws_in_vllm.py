"""The draw of the V2 runner (GPU) equals that of the V1 runner (CPU) for the same rows, passed with V2's slot
numbers."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from vllm import SamplingParams as VllmParams
from vllm.v1.sample.logits_processor import BatchUpdate
from vllm.v1.worker.gpu.sample.logits_processor.loader import _load_v2_logitsprocs_by_fqcns

from engine.inference.port import SamplingParams
from engine.inference.vllm.sampler import SeededDraw, to_extra_args
from engine.inference.vllm.slot_draw import SlotDraw
from engine.inference.vllm.start import V1, V2

CPU = torch.device("cpu")
NUM_SLOTS, VOCABULARY, PROMPT_TOKENS = 9, 50, 3
GREEDY = SamplingParams(max_new_tokens=40, seed=5, temperature=0.0)
PLAIN = SamplingParams(max_new_tokens=40, seed=-7, temperature=1.0)
WARM = SamplingParams(max_new_tokens=40, seed=2**63 - 1, temperature=1.7)
CUT = SamplingParams(max_new_tokens=40, seed=11, temperature=0.8, top_k=5, top_p=0.7, min_p=0.05)


def params(sampling: SamplingParams | None) -> VllmParams:
    return VllmParams(temperature=0.0, extra_args=None if sampling is None else to_extra_args(sampling))


def slot_draw() -> SlotDraw:
    return SlotDraw(None, SimpleNamespace(max_num_reqs=NUM_SLOTS, device=CPU))


def rows_of(slots: list[int], num_drawn: int) -> Any:
    """A step's rows as V2 passes them. Positions are those of the tokens that were read last."""
    return SimpleNamespace(
        idx_mapping_np=np.array(slots, dtype=np.int32),
        expanded_idx_mapping=torch.tensor(slots, dtype=torch.int32),
        pos=torch.full((len(slots),), PROMPT_TOKENS + num_drawn - 1),
    )


def drawn_by_v1(batch: list[SamplingParams], num_drawn: int, logits_BV: Tensor) -> Tensor:
    draw = SeededDraw(None, CPU, False)
    added = [(row, params(each), [1] * PROMPT_TOKENS, [2] * num_drawn) for row, each in enumerate(batch)]
    draw.update_state(BatchUpdate(batch_size=len(batch), removed=[], added=added, moved=[]))
    return draw.apply(logits_BV.clone())


def logits_of(num_rows: int) -> Tensor:
    return 2.0 * torch.randn(num_rows, VOCABULARY, generator=torch.Generator().manual_seed(num_rows))


@pytest.mark.parametrize(
    "batch", [[GREEDY, GREEDY], [PLAIN, WARM], [GREEDY, PLAIN, CUT, WARM], [CUT]], ids=["greedy", "warm", "all", "cut"]
)
def test_both_runners_draw_the_same_tokens_for_equal_rows(batch: list[SamplingParams]) -> None:
    draw, slots = slot_draw(), [7, 2, 5, 0][: len(batch)]
    assert all(draw.add_request(slot, params(each)) for slot, each in zip(slots, batch, strict=True))
    draw.apply_staged_writes()
    tokens = set()
    for num_drawn in range(24):
        logits_BV = logits_of(len(batch))
        left_BV = draw.apply(logits_BV.clone(), rows_of(slots, num_drawn))
        assert torch.equal(left_BV, drawn_by_v1(batch, num_drawn, logits_BV))
        tokens.add(tuple(left_BV.argmax(dim=1).tolist()))
    assert len(tokens) == 1 if batch == [GREEDY, GREEDY] else len(tokens) > 2


def test_draw_is_independent_of_slot_row_and_previous_user() -> None:
    logits_BV = logits_of(1)
    draw = slot_draw()
    for slot, sampling in ((3, WARM), (4, CUT)):
        draw.add_request(slot, params(sampling))
    draw.apply_staged_writes()
    alone = draw.apply(logits_BV.clone(), rows_of([3], 6))
    draw.add_request(4, params(WARM))
    draw.apply_staged_writes()
    assert torch.equal(draw.apply(logits_BV.repeat(2, 1), rows_of([4, 3], 6)), alone.repeat(2, 1))


def test_warm_up_rows_of_vllm_are_left_unchanged() -> None:
    draw, logits_BV = slot_draw(), logits_of(2)
    assert not draw.add_request(1, params(None))
    draw.apply_staged_writes()
    assert torch.equal(draw.apply(logits_BV.clone(), rows_of([1, 1], 0)), logits_BV)


def test_vllm_accepts_only_the_v2_class_for_its_v2_runner() -> None:
    assert _load_v2_logitsprocs_by_fqcns([V2.draw]) == [SlotDraw]
    with pytest.raises(ValueError, match="not a subclass"):
        _load_v2_logitsprocs_by_fqcns([V1.draw])
