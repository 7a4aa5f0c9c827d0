"""Keys and values between two replicas arrive complete and right, or not at all, and no memory stays behind."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine.inference.port import KvPages
from engine.live.body.loop import BodyCall
from engine.live.kv.fetches import Fetches, pages_of
from engine.live.kv.offers import COME_WITHIN_S, Offer, Offered, Offers
from engine.live.kv.wire import NAME_BYTES, PIECE_BYTES, SLOWEST_BYTES_PER_S, Deadline, TornPages, read_head, request
from engine.live.process.links import Links
from engine.live.weights.link import STALLED_S, call
from engine.live.weights.offered_bytes import Reach
from engine.live.weights.segments import FOLDER, own_memory, sweep
from tests.engine.live.weights.test_link import LyingWire
from tests.waiting import eventually

LAYERS = 3
# More than a piece, and not a multiple of one.
LAYER_BYTES = PIECE_BYTES + 4_321
PAGES = KvPages(layout="of a test", version=4, num_tokens=77, data=b"", mixed=True)
ELSEWHERE = "of another host"


class LoopbackLinks(Links):
    def address(self) -> str:
        return "127.0.0.1"


def content(sample: int) -> bytes:
    return np.random.default_rng(sample).integers(0, 256, LAYERS * LAYER_BYTES, dtype=np.uint8).tobytes()


def fill(offer: Offer, sample: int, *, num_layers: int = LAYERS) -> None:
    room = offer.room(sample)
    memory = room.take(PAGES, LAYERS * LAYER_BYTES)
    if memory is None:
        return
    pages = content(sample)
    for layer in range(num_layers):
        span = slice(layer * LAYER_BYTES, (layer + 1) * LAYER_BYTES)
        memory[span] = pages[span]
        room.filled(span.stop)


class Source:
    def __init__(self) -> None:
        self.links = LoopbackLinks()
        self.owner = f"test{os.getpid()}-{self.links.run}"
        self.offers = Offers(owner=self.owner, links=self.links)

    def offer(self, *samples: int) -> tuple[Offer, Offered]:
        offer = self.offers.open(samples)
        assert offer.offered is not None
        return offer, offer.offered

    def pages(self, offered: Offered, *, memory: str = ELSEWHERE) -> Iterator[tuple[int, KvPages]]:
        return pages_of(offered, self.links.token, memory=memory)

    @property
    def segments(self) -> list[Path]:
        return list(FOLDER.glob(f"*{self.owner}*"))


@pytest.fixture
def source() -> Iterator[Source]:
    source = Source()
    yield source
    source.offers.expire(float("inf"))
    eventually(lambda: source.segments, "the source has freed its memory", until=lambda segments: not segments)


@pytest.mark.parametrize("memory", [own_memory(), ELSEWHERE])
def test_sample_arrives_while_the_next_is_still_written(source: Source, memory: str) -> None:
    offer, offered = source.offer(0, 2)
    coming = source.pages(offered, memory=memory)
    fill(offer, 0)
    sample, first = next(coming)
    assert (sample, first) == (0, replace(PAGES, data=first.data)) and bytes(first.data) == content(0)
    fill(offer, 2)
    offer.close()
    [(sample, second)] = coming
    assert sample == 2 and bytes(second.data) == content(2)
    eventually(lambda: source.segments, "the source has freed its memory", until=lambda segments: not segments)
    assert bytes(first.data) == content(0), "a mapped page stays"


@pytest.mark.long
def test_layer_is_sent_before_the_next_is_filled(source: Source) -> None:
    offer, offered = source.offer(0)
    fill(offer, 0, num_layers=1)
    with call(offered.reach, source.links.token) as link:
        request(link, offered.name, ELSEWHERE)
        assert read_head(link) is not None
        deadline = Deadline(LAYER_BYTES)
        came = deadline.received(link, LAYER_BYTES)
    assert len(came) == LAYER_BYTES


def test_samples_without_pages_are_left_out(source: Source) -> None:
    offer, offered = source.offer(0, 1)
    fill(offer, 1)
    offer.close()
    assert [sample for sample, _ in source.pages(offered)] == [1]


def test_byte_changed_on_the_wire_is_refused(source: Source) -> None:
    offer, offered = source.offer(0, 1)
    wire = LyingWire(offered.reach, lies=1, of_answers=True)
    fill(offer, 0)
    fill(offer, 1)
    offer.close()
    came: list[int] = []
    with pytest.raises(TornPages):
        for sample, pages in source.pages(replace(offered, reach=wire.reach)):
            came.append(sample)
            assert bytes(pages.data) == content(sample)
    assert wire.lies == 0 and came == []


def test_vanished_host_leaves_no_memory_behind(source: Source) -> None:
    offer, offered = source.offer(0, 1)
    fill(offer, 0)
    with call(offered.reach, source.links.token) as link:
        request(link, offered.name, ELSEWHERE)
        assert read_head(link) is not None
    eventually(lambda: source.segments, "the source has freed its memory", until=lambda segments: not segments)
    fill(offer, 1)
    assert not source.segments, "no host needs the second sample's memory"


def test_unfetched_offer_expires_and_a_late_host_gets_nothing(source: Source) -> None:
    offer, offered = source.offer(0)
    fill(offer, 0)
    offer.close()
    source.offers.expire(0.0)
    assert source.segments
    source.offers.expire(float("inf"))
    assert not source.segments and COME_WITHIN_S > 0
    with pytest.raises(ConnectionError):
        list(source.pages(offered))


def test_wrong_token_or_guessed_name_gets_nothing(source: Source) -> None:
    offer, offered = source.offer(0)
    fill(offer, 0)
    offer.close()
    with pytest.raises(OSError):
        list(pages_of(offered, b"guessed", memory=ELSEWHERE))
    with pytest.raises(ConnectionError):
        list(source.pages(replace(offered, name=bytes(NAME_BYTES))))
    assert [sample for sample, _ in source.pages(offered)] == [0]
    with pytest.raises(ConnectionError):
        list(source.pages(offered))  # once


def test_full_host_moves_samples_without_their_cache(source: Source) -> None:
    offer, offered = source.offer(0, 1)
    assert offer.room(0).take(PAGES, 1 << 60) is None
    fill(offer, 1)
    offer.close()
    assert [sample for sample, _ in source.pages(offered)] == [1]


@pytest.mark.parametrize("num_bytes", [0, 10**9])
def test_page_timeout_grows_with_size_and_drops_do_not_renew_it(num_bytes: int) -> None:
    now = 0.0
    deadline = Deadline(num_bytes, clock=lambda: now)
    near, far = socket.socketpair()
    with near, far:
        while now < STALLED_S + num_bytes / SLOWEST_BYTES_PER_S:
            far.send(b"x")
            assert deadline.received(near, 1) == b"x"
            now += 1.0
        far.send(b"x")
        with pytest.raises(TimeoutError):
            deadline.received(near, 1)


# ── fetches in parallel with a loop ───────────────────────────────────────────────────────────────────────────────────


class RecordingBody:
    def __init__(self) -> None:
        self.calls: list[object] = []

    def on_pages(self, offer: bytes, sample: int, pages: KvPages) -> list[object]:
        self.calls.append((sample, bytes(pages.data)))
        return []

    def on_pages_ended(self, offer: bytes) -> list[object]:
        self.calls.append("ended")
        return []


def fetched(token: bytes, offered: Offered, within: Callable[[], None] = lambda: None) -> list[object]:
    body = RecordingBody()

    def on_loop(what: BodyCall) -> None:
        what(body)

    Fetches(token=token, on_loop=on_loop).fetch(offered)
    within()
    eventually(lambda: body.calls, "the fetch has ended", until=lambda calls: "ended" in calls)
    return body.calls


def test_fetch_ends_when_the_source_is_gone(source: Source) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    nowhere = Offered(reach=Reach(address="127.0.0.1", port=port), name=bytes(NAME_BYTES), samples=(0,))
    assert fetched(source.links.token, nowhere) == ["ended"]


@pytest.mark.long
def test_only_whole_samples_of_a_killed_source_are_used() -> None:
    script = (
        "import sys; from tests.engine.live.kv.test_moves import Source, fill; source = Source();"
        "offer, offered = source.offer(0, 1); fill(offer, 0); fill(offer, 1, num_layers=2);"
        "print(source.links.token.hex(), offered.name.hex(), offered.reach.port, source.owner, flush=True);"
        "sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as killed:
        assert killed.stdout is not None
        token, name, port, owner = killed.stdout.readline().split()
        reach = Reach(address="127.0.0.1", port=int(port))
        offered = Offered(reach=reach, name=bytes.fromhex(name), samples=(0, 1))
        coming = pages_of(offered, bytes.fromhex(token), memory=ELSEWHERE)
        sample, pages = next(coming)
        assert sample == 0 and bytes(pages.data) == content(0)
        killed.kill()
        with pytest.raises(ConnectionError):
            next(coming)
    assert len(list(FOLDER.glob(f"*{owner}*"))) == 2
    sweep()
    assert not list(FOLDER.glob(f"*{owner}*"))
