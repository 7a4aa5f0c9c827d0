"""A relay never serves a torn version, and keeps every version that may still be needed."""

from dataclasses import replace
from typing import Any

from engine.pipeline.effects import (
    AssembleWeights,
    DropBuffer,
    Effect,
    FetchWeights,
    ForwardChunk,
    OpenBuffer,
    SealWeights,
    Send,
    ServeWeights,
)
from engine.pipeline.messages.addresses import relay_address
from engine.pipeline.messages.message import Tick
from engine.pipeline.messages.to_driver import FaultReported, WeightsTaken
from engine.pipeline.messages.to_relay import (
    BufferHashed,
    ChunkHashed,
    ChunksWanted,
    ClaimObserved,
    FetchFailed,
    RelaysPlaced,
    RelaySynced,
    VersionComing,
    VersionReleased,
    WeightsHashed,
    WeightsOffered,
    WeightsSealed,
    WeightsWanted,
)
from engine.pipeline.messages.to_rollout import VersionAnnounced, VersionMissing
from engine.pipeline.messages.to_trainer import MasterElected, VersionRefused, VersionStored
from engine.pipeline.relay.brain import RelayBrain
from engine.policy.lineage import NO_WEIGHTS, WeightsId
from engine.weights.port import BufferId, WeightManifest


def version(number: int, epoch: int = 0) -> WeightsId:
    return WeightsId(epoch, number)


def whole(number: int) -> BufferId:
    return BufferId(weights=version(number))


def manifest(number: int, epoch: int = 0) -> WeightManifest:
    return WeightManifest(
        weights=version(number, epoch),
        num_bytes=2,
        chunk_bytes=1,
        identity="whole",
        chunk_hashes=("a", "b"),
        tensors=(),
    )


def of(effects: list[Effect], kind: type) -> list[Any]:
    messages = [effect.message if isinstance(effect, Send) else effect for effect in effects]
    return [message for message in messages if isinstance(message, kind)]


def offer(brain: RelayBrain, number: int, *, pinned: bool = False, epoch: int = 0) -> list[Effect]:
    return brain.handle(WeightsOffered(manifest=manifest(number, epoch), pinned=pinned, payload=None), 0.0)


def arrive(
    brain: RelayBrain,
    number: int,
    chunks: tuple[str, ...] = ("a", "b"),
    identity: str = "whole",
    *,
    pinned: bool = False,
    epoch: int = 0,
) -> list[Effect]:
    effects = offer(brain, number, pinned=pinned, epoch=epoch)
    [fetch] = of(effects, FetchWeights)
    buffer_id = BufferId(weights=version(number, epoch))
    for index, chunk in enumerate(chunks):
        effects += brain.handle(ChunkHashed(arrival=fetch.arrival, buffer_id=buffer_id, index=index, digest=chunk), 0.0)
    if of(effects, AssembleWeights):
        effects += brain.handle(BufferHashed(arrival=fetch.arrival, identity=identity), 0.0)
    return effects


def want(brain: RelayBrain, *, held: WeightsId = NO_WEIGHTS, exact: WeightsId | None = None) -> list[Effect]:
    message = WeightsWanted(replica=0, incarnation=0, held=held, exact=exact)
    return brain.handle(message, 0.0)


def test_a_whole_version_is_stored_announced_and_served() -> None:
    brain = RelayBrain()
    assert want(brain) == []
    effects = arrive(brain, 1)
    assert of(effects, VersionStored) and of(effects, VersionAnnounced)
    assert of(want(brain), ServeWeights)[0].weights == version(1)
    assert want(brain, held=version(1)) == []


def test_a_version_is_invisible_until_its_last_hash_matches() -> None:
    brain = RelayBrain()
    [fetch] = of(offer(brain, 1), FetchWeights)
    brain.handle(ChunkHashed(arrival=fetch.arrival, buffer_id=whole(1), index=0, digest="a"), 0.0)
    assert want(brain) == []
    refused = brain.handle(BufferHashed(arrival=fetch.arrival, identity="whole"), 0.0)
    assert of(refused, VersionRefused) and brain.visible == frozenset()


def test_a_chunk_or_a_whole_with_another_hash_is_refused() -> None:
    for chunks, identity in ((("a", "x"), "whole"), (("a", "b"), "other")):
        brain = RelayBrain()
        assert of(arrive(brain, 1, chunks, identity), VersionRefused)
        assert brain.visible == frozenset()
        assert of(arrive(brain, 1), VersionStored), "the next copy is as welcome as the first"


def test_an_offer_without_hashes_gets_them_from_the_body() -> None:
    brain = RelayBrain()
    [fetch] = of(offer(brain, 1), FetchWeights)
    effects = brain.handle(WeightsHashed(arrival=fetch.arrival, manifest=manifest(1)), 0.0)
    assert of(effects, VersionStored) and brain.newest == version(1)
    [fetch] = of(offer(brain, 2), FetchWeights)
    effects = brain.handle(FetchFailed(arrival=fetch.arrival, reason="gone"), 0.0)
    assert of(effects, VersionRefused)[0].weights == version(2) and brain.newest == version(1)


def test_a_second_copy_does_not_disturb_one_that_is_arriving() -> None:
    brain = RelayBrain()
    assert of(offer(brain, 1), FetchWeights)
    assert offer(brain, 1) == []


def test_only_the_newest_and_the_pinned_are_kept() -> None:
    brain = RelayBrain()
    arrive(brain, 0, pinned=True)
    arrive(brain, 1)
    assert of(arrive(brain, 2), DropBuffer)[0].buffer_id == whole(1)
    assert brain.visible == {version(0), version(2)}
    assert of(want(brain, held=version(2), exact=version(0)), ServeWeights)
    assert of(brain.handle(VersionReleased(weights=WeightsId(0, 0)), 0.0), DropBuffer)
    assert of(want(brain, held=version(2), exact=version(0)), VersionMissing)


def test_an_overtaken_version_is_not_fetched_but_confirmed() -> None:
    brain = RelayBrain()
    arrive(brain, 5)
    effects = offer(brain, 4)
    assert of(effects, VersionStored) and not of(effects, FetchWeights)


def test_later_incarnation_of_the_trainer_wins_at_any_step() -> None:
    brain = RelayBrain()
    arrive(brain, 9)
    arrive(brain, 3, epoch=1)
    assert brain.newest == version(3, epoch=1)
    assert of(want(brain, held=version(9)), ServeWeights)[0].weights == version(3, epoch=1)


# ── with others ───────────────────────────────────────────────────────────────────────────────────────────────────


def coming(number: int, *, claim: int = 0, host: int = 0) -> VersionComing:
    return VersionComing(host=host, incarnation=0, claim=claim, manifest=manifest(number), pinned=False, path=())


def synced(
    host: int,
    *,
    claim: int = 0,
    serial: int = 1,
    held: tuple[WeightsId, ...] = (),
    coming: tuple[WeightsId, ...] = (),
) -> RelaySynced:
    return RelaySynced(
        host=host,
        incarnation=0,
        serial=serial,
        claim=claim,
        held=held,
        settled=(),
        released=(),
        wants_reply=False,
        coming=coming,
    )


def take(brain: RelayBrain, number: int) -> None:
    """A version that the relay before this one announces arrives whole."""
    [opened] = of(brain.handle(coming(number), 0.0), OpenBuffer)
    for index, digest in enumerate("ab"):
        chunk = ChunkHashed(arrival=opened.arrival, buffer_id=whole(number), index=index, digest=digest)
        brain.handle(chunk, 0.0)
    brain.handle(BufferHashed(arrival=opened.arrival, identity="whole"), 0.0)
    assert version(number) in brain.visible


def test_version_beyond_the_newest_is_never_missing() -> None:
    """Data orders it as soon as it is trained, which may be before the trainer offers it."""
    leader, follower = RelayBrain(host=0, hosts=(0, 1)), RelayBrain(host=1, hosts=(0, 1))
    arrive(leader, 1)
    take(follower, 1)
    follower.handle(synced(0, held=(version(1),)), 0.0)
    assert not of(want(leader, exact=version(2)), VersionMissing)
    assert not of(want(follower, exact=version(2)), VersionMissing)


def test_pinned_version_that_its_successor_overtakes_is_not_missing() -> None:
    leader, follower = RelayBrain(host=0, hosts=(0, 1)), RelayBrain(host=1, hosts=(0, 1))
    [fetch] = of(offer(leader, 1, pinned=True), FetchWeights)
    arrive(leader, 2)
    take(follower, 2)
    [report] = of(leader.handle(replace(synced(1, held=(version(2),)), wants_reply=True), 0.0), RelaySynced)
    assert report.coming == (version(1),)
    follower.handle(replace(report, serial=9), 0.0)
    assert not of(want(follower, exact=version(1)), VersionMissing)
    refused = leader.handle(FetchFailed(arrival=fetch.arrival, reason="torn"), 0.0)
    assert of(refused, VersionRefused) and not of(refused, VersionStored), "else the trainer would drop its copy"
    assert not of(want(leader, exact=version(1)), VersionMissing)
    [fetch] = of(offer(leader, 1, pinned=True), FetchWeights)
    gone = leader.handle(FetchFailed(arrival=fetch.arrival, reason="", is_gone=True), 0.0)
    assert of(want(leader, exact=version(1)), VersionMissing)
    [report] = of(gone, RelaySynced)
    assert report.coming == ()
    follower.handle(replace(report, serial=10), 0.0)
    assert of(want(follower, exact=version(1)), VersionMissing)


def test_dead_trainers_version_is_missing_after_the_next_ones() -> None:
    brain = RelayBrain()
    [fetch] = of(offer(brain, 4, pinned=True), FetchWeights)
    brain.handle(FetchFailed(arrival=fetch.arrival, reason="torn"), 0.0)
    assert not of(want(brain, exact=version(4)), VersionMissing)
    arrive(brain, 3, epoch=1)
    assert of(want(brain, exact=version(4)), VersionMissing)


def test_released_version_is_confirmed_though_it_never_arrived() -> None:
    brain = RelayBrain()
    [fetch] = of(offer(brain, 1, pinned=True), FetchWeights)
    arrive(brain, 2)
    brain.handle(FetchFailed(arrival=fetch.arrival, reason="torn"), 0.0)
    stored = of(brain.handle(VersionReleased(weights=version(1)), 0.0), VersionStored)
    assert [each.weights for each in stored] == [version(1)]


def test_follower_requests_only_missing_chunks_from_a_new_sender() -> None:
    brain = RelayBrain(host=2, hosts=(0, 1, 2))
    effects = brain.handle(coming(1, host=1), 0.0)
    [opened] = of(effects, OpenBuffer)
    assert of(effects, ChunksWanted)[0].wants == ((whole(1), (0, 1)),)
    brain.handle(ChunkHashed(arrival=opened.arrival, buffer_id=whole(1), index=0, digest="a"), 0.1)
    for at in range(1, 9):  # the one before falls silent, the one before that speaks up
        brain.handle(Tick(), at * 0.5)
        brain.handle(synced(0, serial=at), at * 0.5)
    [wanted] = of(brain.handle(coming(1, host=0), 4.5), ChunksWanted)
    assert wanted.wants == ((whole(1), (1,)),)


def test_chunk_with_another_hash_alone_is_requested_again() -> None:
    brain = RelayBrain(host=1, hosts=(0, 1))
    [opened] = of(brain.handle(coming(1), 0.0), OpenBuffer)
    effects = brain.handle(ChunkHashed(arrival=opened.arrival, buffer_id=whole(1), index=1, digest="torn"), 0.0)
    assert of(effects, ChunksWanted)[0].wants == ((whole(1), (1,)),)


def test_relay_reports_bytes_and_duration_of_a_transfer() -> None:
    master, follower = RelayBrain(host=0, hosts=(0, 1)), RelayBrain(host=1, hosts=(0, 1))
    (taken,) = of(arrive(master, 1), WeightsTaken)
    assert (taken.host, taken.by, taken.num_bytes) == (0, "copy", manifest(1).num_bytes)
    [opened] = of(follower.handle(coming(1), 2.0), OpenBuffer)
    for index, digest in enumerate("ab"):
        chunk = ChunkHashed(arrival=opened.arrival, buffer_id=whole(1), index=index, digest=digest)
        effects = follower.handle(chunk, 3.0)
    assert not of(effects, WeightsTaken), "it is not whole yet"
    effects = follower.handle(BufferHashed(arrival=opened.arrival, identity="whole"), 4.5)
    (taken,) = of(effects, WeightsTaken)
    assert (taken.host, taken.by, taken.num_bytes, taken.seconds) == (1, "whole", manifest(1).num_bytes, 2.5)


def unhashed(number: int) -> VersionComing:
    announced = coming(number)
    return replace(announced, manifest=announced.manifest.cut)


def took(opened: OpenBuffer, index: int, digest: str, *, is_torn: bool = False) -> ChunkHashed:
    return ChunkHashed(arrival=opened.arrival, buffer_id=opened.buffer_id, index=index, digest=digest, is_torn=is_torn)


def wanted_by(host: int, number: int) -> ChunksWanted:
    return ChunksWanted(
        host=host,
        incarnation=0,
        claim=0,
        weights=version(number),
        wants=((whole(number), (0, 1)),),
        knows_hashes=False,
        reach=None,
    )


def test_master_forwards_chunks_at_once_and_hashes_at_the_end() -> None:
    brain = RelayBrain(host=0, hosts=(0, 1), cut=lambda *size: 1)
    brain.handle(synced(1), 0.0)
    effects = brain.handle(WeightsOffered(manifest=manifest(1).cut, pinned=False, payload=None), 0.0)
    [fetch], [announced] = of(effects, FetchWeights), of(effects, VersionComing)
    assert not announced.manifest.is_hashed and announced.manifest.num_chunks == 2
    assert not of(brain.handle(wanted_by(1, 1), 0.1), ForwardChunk), "it has not come yet"
    for index, digest in enumerate("ab"):
        effects = brain.handle(ChunkHashed(arrival=fetch.arrival, buffer_id=whole(1), index=index, digest=digest), 0.2)
        assert [forward.index for forward in of(effects, ForwardChunk)] == [index]
        assert not of(effects, VersionComing) and brain.visible == frozenset()
    effects = brain.handle(WeightsHashed(arrival=fetch.arrival, manifest=manifest(1)), 0.3)
    [announced] = of(effects, VersionComing)
    assert announced.manifest == manifest(1) and brain.newest == version(1)
    assert not of(effects, ForwardChunk), "each goes once"


def test_version_without_hashes_is_not_served() -> None:
    brain = RelayBrain(host=1, hosts=(0, 1, 2))
    [opened] = of(brain.handle(unhashed(1), 0.0), OpenBuffer)
    assert opened.chunk_hashes == ()
    for index, digest in enumerate("ab"):
        effects = brain.handle(took(opened, index, digest), 0.1)
        assert not of(effects, AssembleWeights) and brain.visible == frozenset()
    assert of(brain.handle(coming(1), 0.2), AssembleWeights)
    brain.handle(BufferHashed(arrival=opened.arrival, identity="whole"), 0.3)
    assert brain.newest == version(1)


def test_hashes_that_arrive_before_the_last_chunk_are_accepted() -> None:
    brain = RelayBrain(host=1, hosts=(0, 1))
    [opened] = of(brain.handle(unhashed(1), 0.0), OpenBuffer)
    brain.handle(took(opened, 0, "a"), 0.1)
    effects = brain.handle(coming(1), 0.2)
    assert not of(effects, AssembleWeights) and not of(effects, ChunksWanted), "it was requested, and is on its way"
    assert not of(brain.handle(unhashed(1), 0.3), OpenBuffer), "old news"
    assert of(brain.handle(took(opened, 1, "b"), 0.4), AssembleWeights)


def test_version_that_differs_from_its_hashes_is_fetched_again() -> None:
    brain = RelayBrain(host=1, hosts=(0, 1))
    [opened] = of(brain.handle(unhashed(1), 0.0), OpenBuffer)
    brain.handle(took(opened, 0, "a"), 0.1)
    brain.handle(took(opened, 1, "x"), 0.1)
    effects = brain.handle(coming(1), 0.2)
    assert of(effects, DropBuffer) and not of(effects, AssembleWeights)
    [again], [wanted] = of(effects, OpenBuffer), of(effects, ChunksWanted)
    assert again.chunk_hashes == ("a", "b") and wanted.wants == ((whole(1), (0, 1)),) and wanted.knows_hashes
    assert brain.handle(took(opened, 1, "b"), 0.3) == [], "a message about a dropped arrival"


def test_chunk_unlike_its_senders_hash_is_requested_again() -> None:
    brain = RelayBrain(host=1, hosts=(0, 1))
    [opened] = of(brain.handle(unhashed(1), 0.0), OpenBuffer)
    effects = brain.handle(took(opened, 1, "x", is_torn=True), 0.1)
    assert of(effects, ChunksWanted)[0].wants == ((whole(1), (1,)),)


def test_version_that_differs_from_upstream_is_fetched_again() -> None:
    brain = RelayBrain(host=1, hosts=(0, 1))
    [opened] = of(brain.handle(coming(1), 0.0), OpenBuffer)
    for index, digest in enumerate("ab"):
        brain.handle(took(opened, index, digest), 0.1)
    [sealing] = of(brain.handle(BufferHashed(arrival=opened.arrival, identity="whole"), 0.2), SealWeights)
    assert sealing.weights == version(1)
    before = replace(synced(0), held=(version(1),), seals=((version(1), "right"),))
    assert not of(brain.handle(before, 0.3), DropBuffer), "it is not sealed here yet"
    effects = brain.handle(WeightsSealed(weights=version(1), sha256="other"), 0.4)
    assert of(effects, DropBuffer)[0].buffer_id == whole(1) and of(effects, FaultReported)
    assert brain.visible == frozenset()
    assert of(brain.handle(coming(1), 0.5), OpenBuffer), "since it was dropped, it is announced again"


def test_a_right_seal_changes_nothing() -> None:
    brain = RelayBrain(host=1, hosts=(0, 1))
    [opened] = of(brain.handle(coming(1), 0.0), OpenBuffer)
    for index, digest in enumerate("ab"):
        brain.handle(took(opened, index, digest), 0.1)
    brain.handle(BufferHashed(arrival=opened.arrival, identity="whole"), 0.2)
    brain.handle(WeightsSealed(weights=version(1), sha256="right"), 0.3)
    brain.handle(replace(synced(0), held=(version(1),), seals=((version(1), "right"),)), 0.4)
    assert brain.newest == version(1)
    [sync] = of(brain.handle(replace(synced(0, serial=2), wants_reply=True), 0.5), RelaySynced)
    assert sync.seals == ((version(1), "right"),)


def test_late_relay_is_fed_and_one_without_a_host_not_awaited() -> None:
    brain = RelayBrain()
    arrive(brain, 1)
    assert not of(brain.handle(Tick(), 1.0), RelaySynced), "it is alone"
    effects = brain.handle(RelaysPlaced(relays=(0, 3)), 1.5)
    effects += brain.handle(Tick(), 2.0)
    assert {effect.to for effect in effects if isinstance(effect, Send)} >= {relay_address(3)}
    assert of(brain.handle(synced(3), 2.5), VersionComing), "what it lacks"
    brain.handle(RelaysPlaced(relays=(0,)), 3.0)
    assert of(offer(brain, 2), FetchWeights), "it leads on"
    for second in range(4, 12):
        effects = brain.handle(Tick(), float(second))
        assert not [effect for effect in effects if isinstance(effect, Send) and effect.to == relay_address(3)]


def test_a_stale_masters_word_is_refused() -> None:
    brain = RelayBrain(host=2, hosts=(0, 1, 2))
    brain.handle(synced(1, claim=1), 0.0)
    effects = brain.handle(coming(1, claim=0), 0.0)
    assert not of(effects, OpenBuffer) and of(effects, RelaySynced)[0].claim == 1


def test_follower_rejects_offers_and_names_the_leader() -> None:
    brain = RelayBrain(host=1, hosts=(0, 1))
    effects = offer(brain, 1)
    assert not of(effects, FetchWeights)
    assert of(effects, MasterElected)[0].host == 0


def test_lone_new_incarnation_leads_only_if_the_trainer_agrees() -> None:
    brain = RelayBrain(incarnation=1)
    [elected] = of(brain.handle(Tick(), 0.0), MasterElected)
    assert not of(offer(brain, 1), FetchWeights)
    brain.handle(ClaimObserved(claim=elected.claim, incarnation=1), 0.1)
    assert of(offer(brain, 1), FetchWeights)
