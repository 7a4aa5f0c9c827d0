"""A relay never serves anything torn."""

from typing import Any

from engine.pipeline.effects import DropWeights, Effect, FetchWeights, Send, ServeWeights
from engine.pipeline.messages import (
    BufferHashed,
    ChunkHashed,
    VersionAnnounced,
    VersionMissing,
    VersionRefused,
    VersionReleased,
    VersionStored,
    WeightsOffered,
    WeightsWanted,
)
from engine.pipeline.relay import RelayBrain
from engine.weights.port import WeightManifest


def manifest(version: int) -> WeightManifest:
    return WeightManifest(
        version=version, num_bytes=2, chunk_bytes=1, sha256="whole", chunk_sha256=("a", "b"), tensors=()
    )


def of(effects: list[Effect], kind: type) -> list[Any]:
    messages = [effect.message if isinstance(effect, Send) else effect for effect in effects]
    return [message for message in messages if isinstance(message, kind)]


def offer(brain: RelayBrain, version: int, *, pinned: bool = False) -> list[Effect]:
    return brain.handle(WeightsOffered(manifest=manifest(version), pinned=pinned, payload=None), 0.0)


def arrive(
    brain: RelayBrain, version: int, chunks: tuple[str, ...] = ("a", "b"), whole: str = "whole", pinned: bool = False
) -> list[Effect]:
    effects = offer(brain, version, pinned=pinned)
    for index, chunk in enumerate(chunks):
        effects += brain.handle(ChunkHashed(version=version, index=index, sha256=chunk), 0.0)
    return effects + brain.handle(BufferHashed(version=version, sha256=whole), 0.0)


def want(brain: RelayBrain, *, held: int = -1, exact: int | None = None) -> list[Effect]:
    return brain.handle(WeightsWanted(replica=0, incarnation=0, held=held, exact=exact), 0.0)


def test_a_whole_version_is_stored_announced_and_served() -> None:
    brain = RelayBrain()
    assert want(brain) == []
    effects = arrive(brain, 1)
    assert of(effects, VersionStored) and of(effects, VersionAnnounced)
    assert of(want(brain), ServeWeights)[0].version == 1
    assert want(brain, held=1) == []


def test_a_version_is_invisible_until_its_last_hash_matches() -> None:
    brain = RelayBrain()
    offer(brain, 1)
    brain.handle(ChunkHashed(version=1, index=0, sha256="a"), 0.0)
    assert want(brain) == []
    refused = brain.handle(BufferHashed(version=1, sha256="whole"), 0.0)
    assert of(refused, VersionRefused) and brain.visible == frozenset()


def test_a_chunk_or_a_whole_with_another_hash_is_refused() -> None:
    for chunks, whole in ((("a", "x"), "whole"), (("a", "b"), "other")):
        brain = RelayBrain()
        assert of(arrive(brain, 1, chunks, whole), VersionRefused)
        assert brain.visible == frozenset()
        assert of(arrive(brain, 1), VersionStored), "the next copy is as welcome as the first"


def test_a_second_copy_does_not_disturb_one_that_is_arriving() -> None:
    brain = RelayBrain()
    assert of(offer(brain, 1), FetchWeights)
    assert offer(brain, 1) == []


def test_only_the_newest_and_the_pinned_are_kept() -> None:
    brain = RelayBrain()
    arrive(brain, 0, pinned=True)
    arrive(brain, 1)
    assert of(arrive(brain, 2), DropWeights)[0].version == 1
    assert brain.visible == {0, 2}
    assert of(want(brain, held=2, exact=0), ServeWeights)
    assert of(brain.handle(VersionReleased(version=0), 0.0), DropWeights)
    assert of(want(brain, held=2, exact=0), VersionMissing)


def test_an_overtaken_version_is_not_fetched_but_confirmed() -> None:
    brain = RelayBrain()
    arrive(brain, 5)
    effects = offer(brain, 4)
    assert of(effects, VersionStored) and not of(effects, FetchWeights)
