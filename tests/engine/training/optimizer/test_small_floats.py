"""8-bit floats: right on average, exact once stored, and the same for any split of rows."""

import pytest
import torch
from torch import Tensor

from engine.training.optimizer.small_floats import BLOCK, NUM_NOISES, SmallFloats, decoded, encoded

EVERY_NOISE = torch.arange(NUM_NOISES, dtype=torch.int32)
SIGNS = pytest.mark.parametrize("signed", [True, False])


def noise(shape: torch.Size, *, seed: int = 0) -> Tensor:
    return torch.randint(NUM_NOISES, shape, dtype=torch.int32, generator=torch.Generator().manual_seed(seed))


def numbers(num_rows: int, num_columns: int, *, signed: bool, seed: int = 0) -> Tensor:
    """Numbers of all sizes that a block can hold, some that it cannot, and zeros."""
    chance = torch.Generator().manual_seed(seed)
    powers = torch.randint(-60, 20, (num_rows, num_columns), generator=chance)
    values = torch.ldexp(torch.randn(num_rows, num_columns, generator=chance), powers)
    values[:, ::7] = 0.0
    return values if signed else values.abs()


def kept(values: Tensor, noise_RC: Tensor, *, signed: bool) -> Tensor:
    return decoded(*encoded(values, noise_RC, signed=signed), signed=signed)


@SIGNS
@pytest.mark.parametrize("value", [1.0, 1.001, 0.999, 3.14159, 1e-8, 2.5e-20, 0.0, 6.02e23, 2.0**-126])
def test_mean_of_all_roundings_is_the_number(value: float, signed: bool) -> None:
    exact = torch.tensor(-value if signed else value, dtype=torch.float32)
    codes, tops = encoded(exact.expand(1, NUM_NOISES).contiguous(), EVERY_NOISE.unsqueeze(0), signed=signed)
    rounded = decoded(codes, tops, signed=signed)
    assert rounded.double().mean().item() == exact.double().item()
    assert len(set(rounded.flatten().tolist())) <= 2


@pytest.mark.parametrize("share", [0.75, 1e-3])
def test_tiny_number_is_right_on_average_or_never_zero(
    share: float,
) -> None:
    """Next to a block's 1.0, for the smallest float of a signed block and of one that is never negative."""
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
def test_number_in_its_blocks_range_has_error_below_an_eighth(signed: bool) -> None:
    values = numbers(64, 3 * BLOCK, signed=signed)
    rounded = kept(values, noise(values.shape), signed=signed)
    largest = values.view(64, 3, BLOCK).abs().amax(-1, keepdim=True).expand(64, 3, BLOCK).flatten(1)
    in_range = values.abs() > largest * 2.0 ** -(14 if signed else 30)
    assert 0.1 < in_range.double().mean() < 0.9
    assert ((rounded - values).abs() < values.abs() / 8)[in_range].all()
    assert torch.equal(rounded == 0.0, values == 0.0) or signed


@SIGNS
@pytest.mark.parametrize("num_columns", [1, 5, BLOCK, 2 * BLOCK + 3])
def test_stored_number_is_a_bfloat16_and_stays_the_same(num_columns: int, signed: bool) -> None:
    values = numbers(40, num_columns, signed=signed)
    codes, tops = encoded(values, noise(values.shape), signed=signed)
    stored = decoded(codes, tops, signed=signed)
    assert torch.equal(stored, stored.bfloat16().float()) and stored.isfinite().all()
    for seed in range(3):
        again = encoded(stored.bfloat16().float(), noise(values.shape, seed=seed), signed=signed)
        assert torch.equal(again[0], codes) and torch.equal(again[1], tops)


@SIGNS
def test_rows_encoded_alone_equal_those_of_the_whole(signed: bool) -> None:
    """The rows of a rank, or of a public matrix within a fused one."""
    values = numbers(10, BLOCK + 9, signed=signed)
    every = noise(values.shape)
    codes, tops = encoded(values, every, signed=signed)
    for rows in (slice(0, 3), slice(3, 10)):
        own = encoded(values[rows], every[rows], signed=signed)
        assert torch.equal(own[0], codes[rows]) and torch.equal(own[1], tops[rows])


def test_storage_is_one_byte_per_number_and_per_block() -> None:
    each = SmallFloats.zeros(torch.Size((6, 4 * BLOCK)), signed=True, device=torch.device("cpu"), pinned=False)
    assert each.codes_RC.nbytes + each.tops_RB.nbytes == 6 * (4 * BLOCK + 4)
    assert not each.read(slice(0, 6), torch.device("cpu")).any()
