"""Memory for the copy is allocated once; if memory is short, a mapped file holds the same copy."""

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engine.training.checkpoint.host_memory import spare_bytes
from engine.training.checkpoint.staging import Staging

CPU = torch.device("cpu")
TENSORS = {
    "odd": torch.randn(3, 5).bfloat16(),
    "none": torch.empty(0),
    "next": torch.randn(70),
    "bytes": torch.arange(9, dtype=torch.uint8),
}


def nothing(*, num_sharing: int) -> int:
    return 0


@pytest.mark.parametrize("is_mapped", [False, True])
def test_copies_are_exact_and_reuse_the_same_memory(is_mapped: bool, tmp_path: Path) -> None:
    staging, addresses = (Staging(CPU, nothing) if is_mapped else Staging(CPU)), []
    for _ in range(2):
        live = {name: tensor.clone() for name, tensor in TENSORS.items()}
        held = staging.hold(live, folder=tmp_path / "checkpoints", num_sharing=2)
        live["next"].zero_()
        assert all(torch.equal(held[name], tensor) for name, tensor in TENSORS.items())
        addresses.append([held[name].data_ptr() for name in ("odd", "next", "bytes")])
    assert staging.is_mapped == is_mapped
    assert addresses[0] == addresses[1]
    assert not list(tmp_path.rglob("*.*")), "no file is left"


def test_every_process_of_the_host_counts_in_spare_memory(tmp_path: Path) -> None:
    num_bytes = 4 * 64
    for num_sharing in (3, 4):
        staging = Staging(CPU, lambda *, num_sharing: 3 * num_bytes // num_sharing)
        staging.hold({"w": torch.zeros(64)}, folder=tmp_path, num_sharing=num_sharing)
        assert staging.is_mapped == (num_sharing == 4)


def test_copy_uses_memory_that_was_made_ready(tmp_path: Path) -> None:
    staging, num_bytes = Staging(CPU), 1 << 28
    live = {"w": torch.zeros(num_bytes, dtype=torch.uint8)}
    before = resident_bytes()
    staging.get_ready(live, num_sharing=1)
    staging.wait_until_ready()
    ready, memory = resident_bytes(), staging._memory.data_ptr()
    assert ready - before > 0.9 * num_bytes
    held = staging.hold(live, folder=tmp_path, num_sharing=1)
    assert held["w"].data_ptr() == memory and resident_bytes() - ready < 0.1 * num_bytes
    staging.get_ready(live, num_sharing=1)
    assert staging._memory.data_ptr() == memory, "sufficient memory is kept"


def test_early_copy_does_not_wait_and_larger_one_reallocates(tmp_path: Path) -> None:
    staging = Staging(CPU)
    live = {"w": torch.randn(1 << 24), "v": torch.randn(1 << 24)}
    staging.get_ready({"w": live["w"]}, num_sharing=1)
    for tensors in ({"w": live["w"]}, live):
        held = staging.hold(tensors, folder=tmp_path, num_sharing=1)
        assert all(torch.equal(held[name], tensor) for name, tensor in tensors.items())


def test_short_memory_is_not_made_ready(tmp_path: Path) -> None:
    staging = Staging(CPU, nothing)
    staging.get_ready(TENSORS, num_sharing=1)
    assert staging._touching is None
    staging.hold(TENSORS, folder=tmp_path, num_sharing=1)
    assert staging.is_mapped


def resident_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


@pytest.fixture
def small_disk() -> Iterator[None]:
    """Limits files of this process to 64 KB."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("small_disk")
def test_full_disk_for_the_mapped_file_raises_oserror(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="File too large"):
        Staging(CPU, nothing).hold({"w": torch.zeros(1 << 16)}, folder=tmp_path, num_sharing=1)


def test_spare_bytes_are_less_than_total_memory() -> None:
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    alone, of_two = (spare_bytes(num_sharing=number) for number in (1, 2))
    assert 0 <= of_two <= alone < 1024 * int(lines["MemTotal"].split()[0])
