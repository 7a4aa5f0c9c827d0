"""Ranks hand a version over together: on one host, on two, and when one of them fails."""

import errno
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine.live.process.links import Links
from engine.live.weights import segments
from engine.live.weights.segments import FOLDER, PREFIX, Segment, map_to_write
from engine.models.loading import DEMO_FOLDER, load_decoder, model_tensors
from engine.pipeline.messages.to_relay import WeightsOffered
from engine.policy.lineage import WeightsId
from engine.weights.chunks import WeightsGone
from engine.weights.snapshot import pack_weights
from engine.weights.sums import sums_of
from tests.engine.live.trainer.test_ranks import TIMEOUT_S, make_trainer

FIRST, SECOND, THIRD = (WeightsId(0, step) for step in (1, 2, 3))


def make_rank(rank_1: Callable[[Any], None], **place: Any) -> Any:
    """`rank_1`: is called with rank 1's trainer, in its process."""
    trainer = make_trainer("torch", **place)
    if place["world"].index == 1:
        rank_1(trainer)
    return trainer


def on_a_host_of_its_own(folder: Path, trainer: Any) -> None:
    """A folder on another file system counts as another host's memory."""
    vars(segments)["FOLDER"] = folder


def killed_in_its_second_copy(trainer: Any) -> None:
    values_of, num_calls = trainer.published._values_of, Counter[str]()

    def values_or_death(name: str) -> Any:
        num_calls[name] += 1
        if num_calls[name] > 1 and name != next(iter(num_calls)):  # after the first parameter's bytes
            os.kill(os.getpid(), signal.SIGKILL)
        return values_of(name)

    trainer.published._values_of = values_or_death


def on_a_full_host(trainer: Any) -> None:
    def refuse(descriptor: int, start: int, num_bytes: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    os.posix_fallocate = refuse


class TrainingHosts:
    """Rank 0's process, which also reads versions as the leading relay does."""

    def __init__(
        self, links: Links, rank_1: Callable[[Any], None], resources: Mapping[str, float] | None = None
    ) -> None:
        """`resources`: Ray resources that place rank 1."""
        from engine.live.process.devices import claim_device
        from engine.live.trainer.publishing import PublishingTogether
        from engine.live.trainer.ranks import RankGroup
        from engine.live.weights.handover import Handover

        self._links = links
        handover = Handover(owner=links.run, listen="127.0.0.1", token=links.token)
        make = partial(make_rank, rank_1)
        options = {"num_cpus": 0.1, "resources": dict(resources or {})}
        self._group = RankGroup(make, device=claim_device(), options=[options], timeout_s=TIMEOUT_S)
        self._publishing = PublishingTogether(self._group, handover, links)

    def publish(self, weights: WeightsId) -> list[int]:
        """Returns the number of bytes that each host holds."""
        self._manifest = self._publishing.publish(weights)
        return [part.spans.num_bytes for part in self._publishing.payload(weights).parts]

    def sums(self) -> tuple[int, ...]:
        return self._manifest.sums

    def offer(self, weights: WeightsId) -> WeightsOffered:
        return WeightsOffered(manifest=self._manifest, pinned=False, payload=self._publishing.payload(weights))

    def taken(self, weights: WeightsId) -> bytes:
        from engine.live.relay.assembly import Assembly
        from engine.live.relay.buffers import WeightBuffers
        from engine.live.relay.memory import RelayMemory
        from engine.pipeline.effects import FetchWeights

        payload = self._publishing.payload(weights)
        fetch = FetchWeights(arrival=1, manifest=self._manifest, payload=payload, chunk_bytes=2**20)
        buffers = WeightBuffers(lambda hashed: None, lambda job: None)
        memory = RelayMemory(self._links.run)
        assembly = Assembly(owner=self._links.run, token=self._links.token, memory=memory, buffers=buffers)
        content, _ = assembly.fetched(fetch)
        assert content.segment is not None
        content.segment.remove()
        return bytes(content.memory)

    def forget(self, weights: WeightsId) -> None:
        self._publishing.forget(weights)

    def close(self) -> None:
        self._group.close()


Start = Callable[[Callable[[Any], None]], Any]


@pytest.fixture
def links() -> Links:
    return Links()


@pytest.fixture
def start(own_ray: str, links: Links) -> Iterator[Start]:
    import ray

    started: list[Any] = []

    def start(rank_1: Callable[[Any], None]) -> Any:
        remote: Any = ray.remote(TrainingHosts)
        started.append(remote.options(num_cpus=0.1).remote(links, rank_1))
        return started[-1]

    yield start
    for actor in started:
        ray.kill(actor)


def whole_version() -> bytes:
    return bytes(pack_weights(model_tensors(load_decoder(DEMO_FOLDER, device="cpu")), weights=FIRST).buffer)


def held(links: Links, folder: Path) -> int:
    return len(list(folder.glob(f"{PREFIX}{links.run}-*")))


@pytest.mark.long
@pytest.mark.ray
def test_each_host_serves_its_bytes_and_relay_gets_the_version(start: Start, links: Links, tmp_path: Path) -> None:
    import ray

    assert tmp_path.stat().st_dev != FOLDER.stat().st_dev, "the test needs a second file system"
    hosts, version = start(partial(on_a_host_of_its_own, tmp_path)), whole_version()
    sizes = ray.get(hosts.publish.remote(FIRST))
    assert len(sizes) == 2 and sum(sizes) == len(version) and min(sizes) > 0
    assert ray.get(hosts.taken.remote(FIRST)) == version
    assert ray.get(hosts.sums.remote()) == sums_of(model_tensors(load_decoder(DEMO_FOLDER, device="cpu")).values())
    ray.get(hosts.publish.remote(SECOND))
    ray.get(hosts.forget.remote(FIRST))
    ray.get(hosts.publish.remote(THIRD))
    assert ray.get(hosts.taken.remote(SECOND)) == version
    offered_and_next = 3
    assert held(links, tmp_path) == held(links, FOLDER) == offered_and_next


@pytest.mark.long
@pytest.mark.ray
def test_rank_killed_in_mid_copy_ends_group_and_offers_nothing(
    start: Start, links: Links, processes_of: Callable[[str], list[psutil.Process]]
) -> None:
    import ray

    hosts, version = start(killed_in_its_second_copy), whole_version()
    assert ray.get(hosts.publish.remote(FIRST)) == [len(version)]
    with pytest.raises(Exception, match="rank 1: its process has died"):
        ray.get(hosts.publish.remote(SECOND), timeout=TIMEOUT_S * 3)
    assert not processes_of("TrainerRankActor")
    with pytest.raises(KeyError):
        ray.get(hosts.taken.remote(SECOND))
    assert held(links, FOLDER) == 1, "only the previous version, unchanged"
    assert ray.get(hosts.taken.remote(FIRST)) == version


@pytest.mark.long
@pytest.mark.ray
def test_full_host_is_named_with_the_missing_bytes(start: Start, links: Links) -> None:
    import ray

    hosts = start(on_a_full_host)
    reason = rf"rank 1: OSError: .*host {os.uname().nodename}: no [\d,]+ bytes left in {FOLDER} for weights"
    with pytest.raises(Exception, match=reason):
        ray.get(hosts.publish.remote(FIRST), timeout=TIMEOUT_S * 3)
    assert not held(links, FOLDER)


def test_kernel_refuses_memory_beyond_its_room_before_writes(links: Links) -> None:
    segment = Segment.reserve(links.run, 2**45)
    with pytest.raises(OSError, match="no 35,184,372,088,832 bytes left"):
        map_to_write(segment.shared, [(0, 2**45)])
    with pytest.raises(OSError, match="no 35,184,372,088,832 bytes left"):
        Segment.create(links.run, 2**45)
    segment.remove()
    assert not held(links, FOLDER)


def test_rank_of_an_older_group_cannot_write_a_version(links: Links) -> None:
    given_up = Segment.reserve(links.run, 4_096)
    stale = map_to_write(given_up.shared, [(0, 4_096)])
    given_up.remove()
    after = Segment.reserve(links.run, 4_096)
    stale[:] = b"x" * 4_096  # mapped before the memory was freed
    with pytest.raises(WeightsGone):
        map_to_write(given_up.shared, [(0, 4_096)])
    assert bytes(after.buffer) == bytes(4_096)
    after.remove()
