"""The leading relay assembles a version whose halves are on two hosts of a trainer: the seconds until it has the whole,
with the hashes of its chunks.

The hosts are processes of this machine. A far host's offer names another host's memory, so that it comes over a link:
the loopback, whose two ends share this machine's cores with the hashes.
"""

import multiprocessing
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Final

from engine.live.relay.assembly import Assembly
from engine.live.relay.buffers import WeightBuffers
from engine.live.relay.memory import RelayMemory
from engine.live.weights.handover import Handover
from engine.live.weights.offered_bytes import OfferedBytes, OfferedPart
from engine.live.weights.segments import map_to_write
from engine.pipeline.effects import FetchWeights
from engine.policy.lineage import WeightsId
from engine.policy.relay_chain import chunk_bytes_for
from engine.scorecard.tables import Row, Spread, rounded
from engine.weights.chunks import CHUNK_BYTES
from engine.weights.port import WeightManifest
from engine.weights.spans import Spans

NUM_HOSTS: Final = 2
NUM_RELAYS: Final = 4
# A matrix of 8B's layers; of each, every host has the half of its rows.
TENSOR_BYTES: Final = 4_096 * 12_288 * 2
WEIGHTS: Final = WeightsId(0, 1)
TOKEN: Final = b"bench" * 8
WITHIN_S: Final = 60.0


def rows(*, num_tensors: int, repeats: int) -> Iterator[Row]:
    num_bytes = num_tensors * TENSOR_BYTES
    memory = RelayMemory("bench")
    with _hosts(num_tensors) as parts, closing(memory):
        for num_far in range(NUM_HOSTS + 1):
            offered = OfferedBytes(parts=(*parts[num_far:], *map(_far, parts[:num_far])))
            seconds = [_put_together(num_bytes, offered, memory) for _ in range(1 + repeats)][1:]
            spread = Spread.of(seconds)
            yield {
                "hosts": NUM_HOSTS,
                "what": f"put together, {num_far} of them far",
                **spread.columns("seconds"),
                "gb_per_s": rounded(num_bytes / spread.median / 1e9),
            }


def _put_together(num_bytes: int, offered: OfferedBytes, memory: RelayMemory) -> float:
    manifest = WeightManifest(
        weights=WEIGHTS, num_bytes=num_bytes, chunk_bytes=CHUNK_BYTES, identity="", chunk_hashes=(), tensors=()
    )
    chunk_bytes = chunk_bytes_for(num_bytes, NUM_RELAYS)
    fetch = FetchWeights(arrival=1, manifest=manifest, payload=offered, chunk_bytes=chunk_bytes)
    buffers = WeightBuffers(lambda hashed: None, lambda job: None)
    assembly = Assembly(owner="bench", token=TOKEN, memory=memory, buffers=buffers)
    started = time.perf_counter()
    content, _ = assembly.fetched(fetch)
    taken = time.perf_counter() - started
    assert content.segment is not None
    memory.free(content.segment)
    return taken


def _far(part: OfferedPart) -> OfferedPart:
    return replace(part, shared=replace(part.shared, memory="another host's"))


@contextmanager
def _hosts(num_tensors: int) -> Iterator[Sequence[OfferedPart]]:
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(NUM_HOSTS)]
    hosts = [context.Process(target=_be_a_host, args=(host, num_tensors, pipe)) for host, (_, pipe) in enumerate(pipes)]
    for process in hosts:
        process.start()
    try:
        yield [near.recv() for near, _ in pipes]
    finally:
        for near, _ in pipes:
            near.send("end")
        for process in hosts:
            process.join(WITHIN_S)


def _be_a_host(host: int, num_tensors: int, pipe: Connection) -> None:
    handover = Handover(owner=f"bench-host{host}", listen="127.0.0.1", token=TOKEN)
    half = TENSOR_BYTES // NUM_HOSTS
    begins = (tensor * TENSOR_BYTES + host * half for tensor in range(num_tensors))
    spans = Spans.joined((begin, begin + half) for begin in begins)
    memory = map_to_write(handover.reserve(spans.num_bytes), [(0, spans.num_bytes)])
    memory[: len(TOKEN)] = TOKEN
    handover.keep_part(WEIGHTS, spans)
    pipe.send(handover.part(WEIGHTS))
    pipe.recv()
    handover.close()
