"""The head equals autograd over all logits at once."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from engine.training.step.head import head_scores, rows_of_a_chunk

pytestmark = pytest.mark.usefixtures("one_thread")


def by_autograd(normed_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    all_NV = torch.log_softmax(normed_ND @ weight_VD.t() / temperature, dim=-1)
    return all_NV.gather(1, targets_N.unsqueeze(1)).squeeze(1), -(all_NV.exp() * all_NV).sum(dim=-1)


@given(
    num=st.integers(1, 9),
    chunk=st.integers(1, 10),
    temperature=st.sampled_from([0.3, 1.0, 2.5]),
    train_entropy=st.booleans(),
    seed=st.integers(0, 1_000),
)
def test_values_and_gradients_equal_those_of_all_logits(
    num: int, chunk: int, temperature: float, train_entropy: bool, seed: int
) -> None:
    draw = torch.Generator().manual_seed(seed)
    targets_N = torch.randint(0, 30, (num,), generator=draw)
    weights = torch.randn(2, num, generator=draw, dtype=torch.float32)
    values = [torch.randn(num, 12, generator=draw), torch.randn(30, 12, generator=draw)]
    results = []
    for exactly in (False, True):
        normed_ND, weight_VD = (value.clone().requires_grad_() for value in values)
        if exactly:
            normed, weight = normed_ND.double(), weight_VD.double()
            logprobs_N, entropy_N = by_autograd(normed, weight, targets_N, temperature)
        else:
            logprobs_N, entropy_N, _ = head_scores(
                normed_ND,
                weight_VD,
                targets_N,
                temperature=temperature,
                dtype=torch.float32,
                train_entropy=train_entropy,
                chunk=chunk,
            )
            assert entropy_N.requires_grad == train_entropy
        loss = (weights[0] * logprobs_N).sum() + ((weights[1] * entropy_N).sum() if train_entropy else 0.0)
        loss.backward()  # type: ignore[no-untyped-call]
        results.append([logprobs_N, entropy_N, normed_ND.grad, weight_VD.grad])
    for mine, exact in zip(*results, strict=True):
        assert mine is not None and exact is not None
        torch.testing.assert_close(mine.double(), exact.double(), rtol=1e-4, atol=1e-4)


def test_token_of_zero_probability_keeps_gradients_finite() -> None:
    normed_ND = torch.tensor([[1.0, 0.0]], requires_grad=True)
    weight_VD = torch.tensor([[0.0, 0.0], [-torch.inf, 0.0], [1.0, 0.0]], requires_grad=True)
    logprobs_N, entropy_N, _ = head_scores(
        normed_ND, weight_VD, torch.tensor([2]), temperature=1.0, dtype=torch.float32, train_entropy=True, chunk=1
    )
    assert logprobs_N.isfinite().all() and entropy_N.isfinite().all()
    (logprobs_N + entropy_N).sum().backward()  # type: ignore[no-untyped-call]
    assert weight_VD.grad is not None and weight_VD.grad.isfinite().all()


def test_frozen_head_gets_no_gradient_and_no_grad_saves_nothing() -> None:
    normed_ND, weight_VD = torch.randn(3, 4, requires_grad=True), torch.randn(5, 4)
    given = {"temperature": 1.0, "dtype": torch.float32, "train_entropy": False, "chunk": 2}
    logprobs_N, *_ = head_scores(normed_ND, weight_VD, torch.tensor([0, 1, 4]), **given)  # type: ignore[arg-type]
    logprobs_N.sum().backward()  # type: ignore[no-untyped-call]
    assert normed_ND.grad is not None and weight_VD.grad is None
    with torch.no_grad():
        again_N, *_ = head_scores(normed_ND, weight_VD, torch.tensor([0, 1, 4]), **given)  # type: ignore[arg-type]
    assert again_N.grad_fn is None and torch.equal(again_N, logprobs_N)


def test_chunk_is_fixed_on_a_gpu_and_bounded_by_bytes_on_a_cpu() -> None:
    assert rows_of_a_chunk(151_936, torch.device("cuda")) == 2_048
    assert 4 * 151_936 * rows_of_a_chunk(151_936, torch.device("cpu")) <= 2**28
    assert rows_of_a_chunk(2**40, torch.device("cpu")) == 1


def test_bfloat16_products_sum_weight_gradients_in_float32() -> None:
    """Summing hundreds of chunks in bfloat16 would lose terms that are small against the total."""
    num = 400
    normed_ND = torch.ones(num, 1)
    weight_VD = torch.zeros(2, 1, requires_grad=True)
    targets_N = torch.zeros(num, dtype=torch.int64)
    logprobs_N, *_ = head_scores(
        normed_ND, weight_VD, targets_N, temperature=1.0, dtype=torch.bfloat16, train_entropy=False, chunk=1
    )
    shares_N = torch.ones(num)
    shares_N[1:] = 1 / 1_024  # added to 1 in bfloat16, each would be lost; together they are 0.39
    (logprobs_N * shares_N).sum().backward()  # type: ignore[no-untyped-call]
    assert weight_VD.grad is not None
    assert weight_VD.grad[0].item() == pytest.approx(0.5 * shares_N.sum().item(), rel=1e-2)


def test_magnitudes_equal_those_of_all_logits_at_temperature() -> None:
    draw = torch.Generator().manual_seed(0)
    normed_ND, weight_VD = torch.randn(5, 8, generator=draw), torch.randn(5_000, 8, generator=draw)
    targets_N = torch.arange(5)
    _, _, logits_N2 = head_scores(
        normed_ND, weight_VD, targets_N, temperature=0.5, dtype=torch.float32, train_entropy=False, chunk=2
    )
    logits_NV = normed_ND @ weight_VD.t() / 0.5
    own_N = logits_NV.gather(1, targets_N.unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(logits_N2[:, 0], logits_NV.std(dim=1), rtol=0.1, atol=0.0)
    torch.testing.assert_close(logits_N2[:, 1], torch.maximum(own_N.abs(), logits_NV.logsumexp(dim=1).abs()))
