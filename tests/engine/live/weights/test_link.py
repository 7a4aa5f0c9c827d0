"""Bytes between relays: hashes detect corruption on the wire, strangers get nothing, memory is freed."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from hashlib import sha256
from threading import Event, Thread

import numpy as np
import pytest

from engine.live.body.loop import Body, Loop
from engine.live.relay.actor import look_into
from engine.live.relay.body import RelayBody
from engine.live.weights import handover as handover_module
from engine.live.weights.handover import Handover, pull
from engine.live.weights.link import Listener, call
from engine.live.weights.offered_bytes import OfferedBytes, Reach
from engine.live.weights.segments import FOLDER, Segment, lent_folder, map_shared, sweep
from engine.pipeline.messages.addresses import TRAINER, Address, relay_address
from engine.pipeline.messages.message import Message
from engine.pipeline.messages.to_relay import ClaimObserved, WeightsOffered
from engine.pipeline.messages.to_trainer import MasterElected, VersionStored
from engine.pipeline.relay.brain import RelayBrain
from engine.policy.lineage import WeightsId
from engine.weights.chunks import TornWeights, chunk_spans
from engine.weights.port import TensorEntry, WeightManifest, WeightVersion
from tests.waiting import GIVES_UP_AFTER_S, eventually

TOKEN = b"t" * 32
NUM_BYTES = 3 * 2**20
CHUNK_BYTES = 2**18
NUM_CHUNKS = NUM_BYTES // CHUNK_BYTES


def weights(version: int, *, seed: int = 0) -> WeightVersion:
    content = np.random.default_rng(seed).integers(0, 2**16, NUM_BYTES // 2, dtype=np.uint16)
    entry = TensorEntry(name="w", dtype="bfloat16", shape=(NUM_BYTES // 2,), offset=0, num_bytes=NUM_BYTES)
    manifest = WeightManifest(
        weights=WeightsId(0, version),
        num_bytes=NUM_BYTES,
        chunk_bytes=2**20,
        identity="",
        chunk_hashes=(),
        tensors=(entry,),
    )
    return WeightVersion(manifest=manifest, buffer=content.view(np.uint8).data)


class LyingWire:
    """A proxy between a sender and a listener that changes a byte of the first `lies` stretches, of the caller's bytes
    or of the answers. It may hold these after `holds_at` bytes until `may_continue` is set."""

    def __init__(self, reach: Reach, *, lies: int = 0, of_answers: bool = False, holds_at: int = 2**62) -> None:
        self._behind, self.lies, self._of_answers, self._holds_at = reach, lies, of_answers, holds_at
        self.may_continue = Event()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.reach = Reach(address="127.0.0.1", port=self._socket.getsockname()[1])
        Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            near, _ = self._socket.accept()
            far = socket.create_connection((self._behind.address, self._behind.port))
            Thread(target=self._pump, args=(near, far, not self._of_answers), daemon=True).start()
            Thread(target=self._pump, args=(far, near, self._of_answers), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, may_lie: bool) -> None:
        num_bytes = 0
        while stretch := self._receive(source):
            num_bytes += len(stretch)
            if may_lie and num_bytes >= self._holds_at:
                self.may_continue.wait(GIVES_UP_AFTER_S)
            if may_lie and self.lies and num_bytes > 2**18 and len(stretch) > 1_000:
                self.lies -= 1
                stretch = stretch[:500] + bytes([stretch[500] ^ 1]) + stretch[501:]
            with suppress(OSError):  # the target has closed the link
                target.sendall(stretch)
        target.close()

    def _receive(self, source: socket.socket) -> bytes:
        """Empty also if the other pump has closed the socket."""
        try:
            return source.recv(2**16)
        except OSError:
            return b""


class Pair:
    """A master and a follower in this process, the follower behind a lying wire."""

    def __init__(self, *, lies: int) -> None:
        self._loops: dict[Address, Loop] = {}
        self._lies = lies
        self._silent: list[Address] = []
        self.wire: LyingWire | None = None
        self.to_trainer: list[Message] = []
        for host in (0, 1):
            address = relay_address(host)
            send = partial(self._send, sender=address)
            self._loops[address] = Loop(name=str(address), build=partial(self._build, host), send=send)

    def _send(self, to: Address, message: Message, *, sender: Address = TRAINER) -> None:
        if sender in self._silent:
            return
        if to == TRAINER:
            self.to_trainer.append(message)
        elif to in self._loops and to not in self._silent:
            self._loops[to].deliver(message)

    def _build(self, host: int) -> Body:
        def brain(reach: Reach, process: object) -> RelayBrain:
            if host == 1:
                self.wire = LyingWire(reach, lies=self._lies)
                reach = self.wire.reach
            return RelayBrain(host=host, hosts=(0, 1), reach=reach, process=process, cut=lambda *size: CHUNK_BYTES)

        return RelayBody(
            brain=brain,
            owner=f"test{os.getpid()}-relay{host}",
            listen="127.0.0.1",
            token=TOKEN,
            post=partial(self._send, sender=relay_address(host)),
            on_loop=lambda what: self._loops[relay_address(host)].call(what),
        )

    def offer(self, manifest: WeightManifest, payload: object, *, to: int = 0) -> None:
        self._send(relay_address(to), WeightsOffered(manifest=manifest, pinned=False, payload=payload))

    def agree(self) -> bool:
        """Confirms a relay that wants to lead."""
        for wish in self.to_trainer:
            if isinstance(wish, MasterElected) and wish.incarnation is not None:
                seen = ClaimObserved(claim=wish.claim, incarnation=wish.incarnation)
                self._send(relay_address(wish.host), seen)
                return True
        return False

    def silence(self, host: int) -> None:
        """Cuts the host off, as if it were dead."""
        self._silent.append(relay_address(host))

    def wait_for_wire(self) -> None:
        eventually(lambda: self.wire, "the follower is built")

    def wait_for_chunks(self, host: int, number: int) -> None:
        eventually(partial(self.chunks, host), f"relay {host} has {number} chunks", until=lambda held: held >= number)

    def wait_for(self, version: WeightsId, *hosts: int) -> None:
        for host in hosts:
            what = f"relay {host} shows version {version}"
            eventually(partial(self.visible, host), what, until=lambda visible: version in visible)

    def seals(self, host: int) -> dict[WeightsId, str]:
        return dict(look_into(self._loops[relay_address(host)], lambda body: body.view().seals))

    def chunks(self, host: int) -> int:
        num_chunks: int = look_into(self._loops[relay_address(host)], lambda body: body.buffers.num_chunks)
        return num_chunks

    def visible(self, host: int) -> frozenset[WeightsId]:
        return look_into(self._loops[relay_address(host)], lambda body: body.brain.visible)

    def bytes_of(self, host: int, version: WeightsId) -> bytes:
        return look_into(self._loops[relay_address(host)], lambda body: bytes(body._version(version).buffer))

    def close(self) -> None:
        for loop in self._loops.values():
            look_into(loop, lambda body: body.end())


@pytest.fixture
def handover() -> Iterator[Handover]:
    handover = Handover(owner=f"test{os.getpid()}-trainer", listen="127.0.0.1", token=TOKEN)
    yield handover
    handover.close()


@pytest.mark.parametrize("lies", [0, 3])
def test_chunk_corrupted_on_the_wire_is_refetched(handover: Handover, lies: int) -> None:
    pair = Pair(lies=lies)
    try:
        pair.wait_for_wire()
        sent = weights(1)
        handover.keep(sent)
        pair.offer(sent.manifest, handover.payload(sent.manifest.weights))
        version = WeightsId(0, 1)
        pair.wait_for(version, 1)
        assert pair.wire is not None and pair.wire.lies == 0
        assert pair.bytes_of(0, version) == pair.bytes_of(1, version) == bytes(sent.buffer)
        stored = VersionStored(weights=WeightsId(0, 1))
        eventually(lambda: pair.to_trainer, "the version is stored", until=lambda messages: stored in messages)
    finally:
        pair.close()


@pytest.fixture
def far(handover: Handover, monkeypatch: pytest.MonkeyPatch) -> tuple[WeightVersion, OfferedBytes, LyingWire]:
    """A version on another host, whose transfer stops after two thirds."""
    monkeypatch.setattr(handover_module, "PULL_BYTES", CHUNK_BYTES)
    sent = weights(1)
    handover.keep(sent)
    part = handover.part(sent.manifest.weights)
    assert part.reach is not None
    wire = LyingWire(part.reach, of_answers=True, holds_at=NUM_BYTES * 2 // 3)
    return sent, OfferedBytes(parts=(replace(part, shared=replace(part.shared, memory="far"), reach=wire.reach),)), wire


@pytest.mark.long_except("0")
@pytest.mark.parametrize("lies", [0, 2])
def test_chunks_are_forwarded_early_and_shown_once_complete(
    far: tuple[WeightVersion, OfferedBytes, LyingWire], lies: int
) -> None:
    sent, offered, trainers_wire = far
    pair = Pair(lies=lies)
    try:
        pair.wait_for_wire()
        pair.offer(sent.manifest, offered)
        pair.wait_for_chunks(1, NUM_CHUNKS // 2)
        assert not pair.visible(0) and not pair.visible(1)
        trainers_wire.may_continue.set()
        pair.wait_for(WeightsId(0, 1), 0, 1)
        assert pair.bytes_of(0, WeightsId(0, 1)) == pair.bytes_of(1, WeightsId(0, 1)) == bytes(sent.buffer)
        assert pair.chunks(1) == NUM_CHUNKS
        chunks = (sent.buffer[start:end] for start, end in chunk_spans(NUM_BYTES, CHUNK_BYTES))
        seal = sha256(b"".join(sha256(chunk).digest() for chunk in chunks)).hexdigest()
        both = ({WeightsId(0, 1): seal},) * 2
        eventually(lambda: (pair.seals(0), pair.seals(1)), "both have the seal", until=lambda seals: seals == both)
    finally:
        pair.close()


@pytest.mark.long
def test_relay_whose_head_dies_midway_shows_only_whole_versions(
    handover: Handover, far: tuple[WeightVersion, OfferedBytes, LyingWire]
) -> None:
    sent, offered, trainers_wire = far
    pair = Pair(lies=0)
    try:
        pair.wait_for_wire()
        pair.offer(sent.manifest, offered)
        pair.wait_for_chunks(1, NUM_CHUNKS // 2)
        pair.silence(0)
        eventually(pair.agree, "the second relay wants to lead")
        assert not pair.visible(1)
        pair.offer(sent.manifest, handover.payload(sent.manifest.weights), to=1)
        pair.wait_for(WeightsId(0, 1), 1)
        assert pair.bytes_of(1, WeightsId(0, 1)) == bytes(sent.buffer)
    finally:
        trainers_wire.may_continue.set()
        pair.close()


@pytest.mark.parametrize("lies", [0, 2])
def test_master_on_another_host_pulls_from_trainer_over_a_link(
    handover: Handover, lies: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover_module, "PULL_BYTES", 2**20)
    sent = weights(7)
    handover.keep(sent)
    part = handover.part(WeightsId(0, 7))
    assert part.reach is not None
    room = memoryview(bytearray(NUM_BYTES))
    wire = LyingWire(part.reach, lies=lies, of_answers=True)
    arrived: list[tuple[int, int]] = []
    pull(replace(part, reach=wire.reach), TOKEN, WeightsId(0, 7), room, lambda *span: arrived.append(span))
    assert room == sent.buffer and wire.lies == 0
    assert arrived == list(chunk_spans(NUM_BYTES, 2**20)), "each byte arrives once, when it is valid"
    with pytest.raises(TornWeights):
        pull(part, TOKEN, WeightsId(0, 8), room, lambda *span: None)
    with pytest.raises(TornWeights):
        pull(part, b"another token", WeightsId(0, 7), room, lambda *span: None)


def test_stranger_without_the_token_can_neither_send_nor_read() -> None:
    served: list[bytes] = []
    listener = Listener("127.0.0.1", TOKEN, lambda link: served.append(link.recv(10)))
    with pytest.raises(OSError):
        call(listener.reach, b"guessed").sendall(b"injected")
    with socket.create_connection((listener.reach.address, listener.reach.port)) as plain:
        plain.sendall(b"injected" * 10)
        with suppress(ConnectionResetError):
            while plain.recv(100):  # a nonce and a proof; then the listener closes the link
                pass
    with call(listener.reach, TOKEN) as link:
        link.sendall(b"welcome")
    eventually(lambda: served, "the message is served", until=lambda messages: messages == [b"welcome"])
    listener.close()


def test_handed_over_version_outlives_trainer_without_a_copy(handover: Handover) -> None:
    room = handover.allocate(1_000)
    room[:] = b"x" * 1_000
    manifest = WeightManifest(
        weights=WeightsId(0, 1), num_bytes=1_000, chunk_bytes=10, identity="", chunk_hashes=(), tensors=()
    )
    handover.keep(WeightVersion(manifest=manifest, buffer=room.toreadonly()))
    shared = handover.part(manifest.weights).shared
    adopted = Segment.adopt(f"test{os.getpid()}-relay", shared)
    handover.forget(manifest.weights)
    assert (FOLDER / adopted.shared.name).stat().st_nlink == 1
    mapped = map_shared(adopted.shared)
    assert bytes(mapped) == b"x" * 1_000 and mapped.readonly
    with pytest.raises(TornWeights, match="gone"):
        map_shared(shared)
    adopted.remove()
    assert bytes(mapped) == b"x" * 1_000, "a mapped segment stays"


def test_sweep_removes_memory_of_killed_processes_only() -> None:
    script = (
        "import os, signal, sys; from engine.live.weights.segments import Segment;"
        "print(Segment.create('orphan', 100).shared.name, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    orphan = done.stdout.strip()
    mine = Segment.create("living", 100)
    assert (FOLDER / orphan).exists()
    removed = sweep()
    assert orphan in removed and mine.shared.name not in removed
    assert map_shared(mine.shared).nbytes == 100
    mine.remove()
    assert not (FOLDER / mine.shared.name).exists()


def test_lent_folder_is_removed_or_swept_after_a_kill() -> None:
    script = (
        "import os, signal; from engine.live.weights.segments import lent_folder; lent = lent_folder('orphan');"
        "folder = lent.__enter__(); (folder / 'file').write_text('x'); print(folder.name, flush=True);"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    orphan = done.stdout.strip()
    with lent_folder("living") as mine:
        (mine / "file").write_text("x")
        assert (FOLDER / orphan / "file").exists()
        removed = sweep()
        assert orphan in removed and mine.name not in removed
        assert (mine / "file").read_text() == "x"
    assert not mine.exists() and not (FOLDER / orphan).exists()
