"""Eight bits a number: what is kept is true on average, exact from then on, and the same however rows are divided."""

import pytest
import torch
from torch import Tensor

from engine.training.optimizer.small_floats import BLOCK, NUM_NOISES, SmallFloats, decoded, encoded

EVERY_NOISE = torch.arange(NUM_NOISES, dtype=torch.int32)
SIGNS = pytest.mark.parametrize("signed", [True, False])


def noise(shape: torch.Size, *, seed: int = 0) -> Tensor:
    return torch.randint(NUM_NOISES, shape, dtype=torch.int32, generator=torch.Generator().manual_seed(seed))


def numbers(num_rows: int, num_columns: int, *, signed: bool, seed: int = 0) -> Tensor:
    """Of all sizes that a block can hold and some that it cannot, and zeros."""
    chance = torch.Generator().manual_seed(seed)
    powers = torch.randint(-60, 20, (num_rows, num_columns), generator=chance)
    found = torch.ldexp(torch.randn(num_rows, num_columns, generator=chance), powers)
    found[:, ::7] = 0.0
    return found if signed else found.abs()


def kept(values: Tensor, noise_RC: Tensor, *, signed: bool) -> Tensor:
    return decoded(*encoded(values, noise_RC, signed=signed), signed=signed)


@SIGNS
@pytest.mark.parametrize("value", [1.0, 1.001, 0.999, 3.14159, 1e-8, 2.5e-20, 0.0, 6.02e23, 2.0**-126])
def test_the_mean_of_all_roundings_is_the_number_itself(value: float, signed: bool) -> None:
    exact = torch.tensor(-value if signed else value, dtype=torch.float32)
    codes, tops = encoded(exact.expand(1, NUM_NOISES).contiguous(), EVERY_NOISE.unsqueeze(0), signed=signed)
    found = decoded(codes, tops, signed=signed)
    assert found.double().mean().item() == exact.double().item()
    assert len(set(found.flatten().tolist())) <= 2


@pytest.mark.parametrize("share", [0.75, 1e-3])
def test_beside_a_large_number_a_tiny_one_is_right_on_average_too_but_never_nothing_where_it_divides(
    share: float,
) -> None:
    """Of a signed block's smallest float, and of one that is never negative."""
    for signed, smallest in ((True, 1.125 * 2.0**-15), (False, 1.125 * 2.0**-31)):
        block = torch.full((NUM_NOISES // 128, BLOCK), share * smallest)
        block[:, :128] = 1.0
        every = EVERY_NOISE.view(-1, 128).repeat(1, 2)
        tiny = kept(block, every, signed=signed)[:, 128:]
        if signed:
            assert set(tiny.flatten().tolist()) == {0.0, smallest}
            assert tiny.double().mean().item() == pytest.approx(share * smallest, rel=1 / (share * NUM_NOISES))
        else:
            assert set(tiny.flatten().tolist()) == {smallest}


@SIGNS
def test_a_number_in_its_blocks_range_is_off_by_less_than_an_eighth(signed: bool) -> None:
    values = numbers(64, 3 * BLOCK, signed=signed)
    found = kept(values, noise(values.shape), signed=signed)
    largest = values.view(64, 3, BLOCK).abs().amax(-1, keepdim=True).expand(64, 3, BLOCK).flatten(1)
    in_range = values.abs() > largest * 2.0 ** -(14 if signed else 30)
    assert 0.1 < in_range.double().mean() < 0.9
    assert ((found - values).abs() < values.abs() / 8)[in_range].all()
    assert torch.equal(found == 0.0, values == 0.0) or signed


@SIGNS
@pytest.mark.parametrize("num_columns", [1, 5, BLOCK, 2 * BLOCK + 3])
def test_what_is_kept_is_a_bfloat16_and_kept_again_it_is_the_same(num_columns: int, signed: bool) -> None:
    values = numbers(40, num_columns, signed=signed)
    codes, tops = encoded(values, noise(values.shape), signed=signed)
    found = decoded(codes, tops, signed=signed)
    assert torch.equal(found, found.bfloat16().float()) and found.isfinite().all()
    for seed in range(3):
        again = encoded(found.bfloat16().float(), noise(values.shape, seed=seed), signed=signed)
        assert torch.equal(again[0], codes) and torch.equal(again[1], tops)


@SIGNS
def test_rows_for_themselves_are_those_of_the_whole(signed: bool) -> None:
    """A rank's, or a public matrix's within a fused one."""
    values = numbers(10, BLOCK + 9, signed=signed)
    every = noise(values.shape)
    codes, tops = encoded(values, every, signed=signed)
    for rows in (slice(0, 3), slice(3, 10)):
        own = encoded(values[rows], every[rows], signed=signed)
        assert torch.equal(own[0], codes[rows]) and torch.equal(own[1], tops[rows])


def test_two_moments_take_two_bytes_a_number_and_one_for_each_block() -> None:
    each = SmallFloats.zeros(torch.Size((6, 4 * BLOCK)), signed=True, device=torch.device("cpu"), pinned=False)
    assert each.codes_RC.nbytes + each.tops_RB.nbytes == 6 * (4 * BLOCK + 4)
    assert not each.read(slice(0, 6), torch.device("cpu")).any()
