"""Our AdamW is torch's, bit for bit, without the class that loads the compiler."""

from typing import Any

import torch
from torch import nn

from engine.training.fused_adamw import FusedAdamW, ParameterGroup

BETAS, EPS, DECAY = (0.9, 0.999), 1e-8, 0.1


def layers(dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(7, 5), nn.LayerNorm(5), nn.Linear(5, 3)).to(dtype)


def test_parameters_and_moments_are_those_of_torchs_own_class() -> None:
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


def test_a_parameter_without_a_gradient_stays_as_it_is_and_counts_no_update() -> None:
    moved, still = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2, 2))
    group = ParameterGroup(parameters=[moved, still], weight_decay=0.5, full_lr=0.1, lr=0.1)
    optimizer = FusedAdamW(groups=[group], betas=BETAS, eps=EPS)
    total: Any = moved.sum()
    total.backward()
    optimizer.step()
    assert torch.equal(still, torch.ones(2, 2)) and not torch.equal(moved, still)
    assert optimizer.state[moved]["step"].item() == 1.0 and not optimizer.state[still]
