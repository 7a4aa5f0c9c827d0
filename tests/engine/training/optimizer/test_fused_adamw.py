"""FusedAdamW equals torch's AdamW bit for bit, and stores moments in bfloat16, 8 bits or host memory."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import engine.training.optimizer.fused_adamw as fused_adamw
from engine.spec.job import OptimizerSpec
from engine.training.optimizer.fused_adamw import FusedAdamW, KeptApart, ParameterGroup

BETAS, EPS, DECAY = (0.9, 0.999), 1e-8, 0.1


def layers(dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(7, 5), nn.LayerNorm(5), nn.Linear(5, 3)).to(dtype)


def test_parameters_and_moments_equal_torchs_adamw() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        ours, theirs = layers(dtype), layers(dtype)
        matrices = [[each for each in model.parameters() if each.dim() > 1] for model in (ours, theirs)]
        vectors = [[each for each in model.parameters() if each.dim() == 1] for model in (ours, theirs)]
        mine = FusedAdamW(
            groups=[
                ParameterGroup(parameters=matrices[0], weight_decay=DECAY, full_lr=1e-2),
                ParameterGroup(parameters=vectors[0], weight_decay=0.0, full_lr=1e-2),
            ],
            betas=BETAS,
            eps=EPS,
        )
        groups: list[dict[str, Any]] = [{"params": matrices[1], "weight_decay": DECAY}]
        groups.append({"params": vectors[1], "weight_decay": 0.0})
        reference = torch.optim.AdamW(groups, lr=0.0, betas=BETAS, eps=EPS, fused=True)
        for update in range(6):
            inputs = torch.randn(4, 7, generator=torch.Generator().manual_seed(update)).to(dtype)
            for model in (ours, theirs):
                model(inputs).square().mean().backward()
            for group, theirs_too in zip(mine.groups, reference.param_groups, strict=True):
                group.lr = theirs_too["lr"] = 1e-2 * (update + 1) / 6
            mine.step()
            reference.step()
            mine.zero_grad()
            reference.zero_grad()
        for own, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert torch.equal(own, other)
            assert all(torch.equal(mine.state[own][name], reference.state[other][name]) for name in mine.state[own])
            assert set(mine.state[own]) == set(reference.state[other])


def test_parameter_without_gradient_is_unchanged() -> None:
    moved, still = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2, 2))
    group = ParameterGroup(parameters=[moved, still], weight_decay=0.5, full_lr=0.1, lr=0.1)
    optimizer = FusedAdamW(groups=[group], betas=BETAS, eps=EPS)
    total: Any = moved.sum()
    total.backward()
    optimizer.step()
    assert torch.equal(still, torch.ones(2, 2)) and not torch.equal(moved, still)
    assert optimizer.state[moved]["step"].item() == 1.0 and not optimizer.state[still]


# Moments stored apart -------------------------------------------------------------------------------------------------

NUM_WEIGHTS = 4_096
IN_BFLOAT16 = KeptApart(dtype=torch.bfloat16, in_host_memory=False)
IN_8_BITS = KeptApart(dtype=torch.float32, in_host_memory=False, small=True)
IN_HOST_MEMORY = KeptApart(dtype=torch.float32, in_host_memory=True)


def optimizer_of(weights: nn.Parameter, kept: KeptApart | None, *, betas: tuple[float, float] = BETAS) -> FusedAdamW:
    group = ParameterGroup(parameters=[weights], weight_decay=DECAY, full_lr=1e-3, lr=1e-3)
    return FusedAdamW(groups=[group], betas=betas, eps=EPS, kept=kept)


def after_updates(
    kept: KeptApart | None,
    num: int,
    *,
    calm_after: int | None = None,
    rows: int = 0,
    betas: tuple[float, float] = BETAS,
) -> tuple[nn.Parameter, FusedAdamW]:
    """Weights that began at 0; gradients shrink to a tenth from `calm_after` on. `rows`: of a matrix; 0: a vector."""
    weights = nn.Parameter(torch.zeros((rows, NUM_WEIGHTS // rows) if rows else NUM_WEIGHTS))
    optimizer = optimizer_of(weights, kept, betas=betas)
    chance = torch.Generator().manual_seed(1)
    for update in range(num):
        calm = calm_after is not None and update >= calm_after
        weights.grad = torch.randn(weights.shape, generator=chance) * (0.1 if calm else 1.0)
        optimizer.step()
    return weights, optimizer


@pytest.mark.long
def test_bfloat16_second_moment_follows_float32() -> None:
    """Over 2,000 updates; in the second half each only takes a thousandth off. Compares means over the weights, since
    each one has a random error below a tenth, of which √4,096 leave little more than a thousandth."""
    exact, near = (after_updates(kept, 2_000, calm_after=1_000) for kept in (None, IN_BFLOAT16))
    for name in ("exp_avg", "exp_avg_sq"):
        assert near[1].state[near[0]][name].dtype == torch.bfloat16
    expected, moment = (optimizer.state[weights]["exp_avg_sq"].double() for weights, optimizer in (exact, near))
    assert 0.2 < expected.mean() < 0.4
    assert moment.mean().item() == pytest.approx(expected.mean().item(), rel=0.01)
    assert ((moment - expected) / expected).std() < 0.1
    distance = exact[0].double().std()
    assert (near[0] - exact[0]).double().std() < 0.1 * distance


@pytest.mark.parametrize(("calm_after", "variance"), [(None, 1 / 16), (100, 1 / 16 + 1 / 8)])
def test_second_moment_in_8_bits_follows_float32(calm_after: int | None, variance: float) -> None:
    """Stochastic rounding moves a number by δ with probability p = Δ/δ, so an update adds a variance of δ·Δ. With
    Δ = (1 - β₂)·|g²/v - 1|, and each update removing 2·(1 - β₂) of the variance, v's variance is at most δ/2 while v
    stays, since δ is at most 1/8 and |g²/v - 1| is 1 on average. While v falls, its relative variance does not shrink:
    1/(1 - β₂) updates add δ. This does not depend on β₂ as long as 1 - β₂ is far below δ, so 200 updates by a hundredth
    suffice. A step's error is half as large, and the mean's over the weights a 64th, of which four are allowed."""
    exact, near = (
        after_updates(kept, 200, calm_after=calm_after, rows=16, betas=(0.9, 0.99)) for kept in (None, IN_8_BITS)
    )
    expected = exact[1].state[exact[0]]["exp_avg_sq"].double()
    moment = near[1].moment_of(near[0], "exp_avg_sq").double()
    assert moment.mean().item() == pytest.approx(expected.mean().item(), rel=4 * (variance / NUM_WEIGHTS) ** 0.5)
    assert 0.0 < ((moment - expected) / expected).var() < variance
    assert (near[0] - exact[0]).double().std() < variance**0.5 * exact[0].double().std()


def test_moments_in_8_bits_descend_a_badly_scaled_valley() -> None:
    """A quadratic with scales a factor of a million apart: each direction's second moment has its own size."""

    def height_after(kept: KeptApart | None) -> float:
        scales = torch.logspace(-3, 3, NUM_WEIGHTS).view(16, -1)
        weights = nn.Parameter(torch.ones(16, NUM_WEIGHTS // 16))
        optimizer, chance = optimizer_of(weights, kept), torch.Generator().manual_seed(2)
        optimizer.groups[0].lr = 1e-2
        for _ in range(200):
            slope = scales * weights.detach()
            weights.grad = slope * (1.0 + 0.1 * torch.randn(slope.shape, generator=chance))
            optimizer.step()
        return float((weights.detach() ** 2).mean())

    exact, near = height_after(None), height_after(IN_8_BITS)
    assert exact < 0.1 and near < 2.0 * exact


@pytest.mark.parametrize("in_host_memory", [False, True])
def test_moments_in_8_bits_resume_bit_for_bit(in_host_memory: bool) -> None:
    """In the form that a checkpoint stores; the next update is then the same."""
    kept = replace(IN_8_BITS, in_host_memory=in_host_memory)
    weights, optimizer = after_updates(kept, 5, rows=7)
    other = nn.Parameter(weights.detach().clone())
    resumed = optimizer_of(other, kept)
    resumed.reset(other, num_updates=5)
    for moment in ("exp_avg", "exp_avg_sq"):
        stored = optimizer.moment_of(weights, moment)
        assert stored.dtype == torch.bfloat16 and stored.any()
        resumed.take_moment(other, moment, stored)
        assert torch.equal(resumed.moment_of(other, moment), stored)
    for parameter, each in ((weights, optimizer), (other, resumed)):
        parameter.grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(9))
        each.step()
    assert torch.equal(weights, other)
    assert torch.equal(resumed.moment_of(other, "exp_avg"), optimizer.moment_of(weights, "exp_avg"))


def test_pieces_in_8_bits_equal_the_whole_within_rounding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first update uses no rounded moment; each later one a moment that is off by less than an eighth."""
    whole, _ = after_updates(IN_8_BITS, 2, rows=16)
    monkeypatch.setattr(fused_adamw, "PIECE_NUMEL", 700)
    pieces, _ = after_updates(IN_8_BITS, 2, rows=16)
    first, _ = after_updates(IN_8_BITS, 1, rows=16)
    assert not torch.equal(pieces, whole)
    assert ((pieces - whole).abs() <= 0.25 * 1e-3 + 0.25 * (whole - first).abs()).all()


def test_moments_of_vectors_stay_float32_in_8_bits() -> None:
    (exact, at_once), (near, apart) = (after_updates(kept, 3) for kept in (None, IN_8_BITS))
    assert torch.equal(near, exact)
    assert torch.equal(apart.moment_of(near, "exp_avg_sq"), at_once.state[exact]["exp_avg_sq"])


def test_second_moment_rounded_to_nearest_does_not_fall() -> None:
    """Why rounding is stochastic: torch's own kernel on moments in bfloat16."""
    weights = nn.Parameter(torch.zeros(NUM_WEIGHTS, dtype=torch.bfloat16))
    optimizer = optimizer_of(weights, None)
    chance = torch.Generator().manual_seed(1)
    for gradients, num in ((1.0, 1_000), (0.1, 1_000)):
        before = optimizer.state_of(weights)["exp_avg_sq"].clone()
        for _ in range(num):
            weights.grad = (torch.randn(NUM_WEIGHTS, generator=chance) * gradients).to(torch.bfloat16)
            optimizer.step()
    left = optimizer.state[weights]["exp_avg_sq"].double().mean() / before.double().mean()
    assert left > 0.9  # of what falls to a third


def test_pieces_in_host_memory_equal_the_whole_bit_for_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_adamw, "PIECE_NUMEL", 1_024)
    (whole, at_once), (pieces, piecewise) = (after_updates(kept, 3) for kept in (None, IN_HOST_MEMORY))
    assert torch.equal(whole, pieces)
    assert all(torch.equal(at_once.state[whole][name], piecewise.state[pieces][name]) for name in at_once.state[whole])


def test_pieces_in_bfloat16_equal_the_whole_within_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 8 significant bits, on both moments: a hundredth of each step."""
    monkeypatch.setattr(fused_adamw, "PIECE_NUMEL", 1_000)
    (whole, _), (pieces, _) = (after_updates(kept, 3) for kept in (None, IN_BFLOAT16))
    torch.testing.assert_close(pieces, whole, rtol=0, atol=3 * 1e-3 * 2.0**-6)


def test_rounding_noise_depends_on_the_update() -> None:
    first, again = (after_updates(IN_BFLOAT16, 5) for _ in range(2))
    assert torch.equal(first[0], again[0])
    weights, optimizer = first
    moments = []
    for num_updates in (5, 5, 6):
        for name in ("exp_avg", "exp_avg_sq"):
            optimizer.state[weights][name].copy_(again[1].state[again[0]][name])
        optimizer.state[weights]["step"].fill_(num_updates)
        optimizer.step()
        moments.append(optimizer.state[weights]["exp_avg_sq"].clone())
    assert torch.equal(moments[0], moments[1]) and not torch.equal(moments[0], moments[2])


def test_spec_determines_the_storage_of_moments() -> None:
    assert KeptApart.from_spec(OptimizerSpec()) is None
    assert KeptApart.from_spec(OptimizerSpec(moments="bfloat16")) == IN_BFLOAT16
    assert KeptApart.from_spec(OptimizerSpec(moments="float8")) == IN_8_BITS
    assert KeptApart.from_spec(OptimizerSpec(offload=True)) == IN_HOST_MEMORY
