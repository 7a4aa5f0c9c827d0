"""Pages of a moved sample on their way to another replica of this machine: by the memory that both see, and by a link.

Source and host are threads of one process, whose loop's thread inserts the pages; for comparison a plain copy of as
many bytes.
"""

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np

from engine.inference.port import KvPages
from engine.live.kv.fetches import pages_of
from engine.live.kv.offers import Offer, Offers
from engine.live.weights.segments import own_memory
from engine.scorecard.tables import Row, Spread, rounded
from tests.bench.engine.relays.travel import LoopbackLinks
from tests.bench.engine.report import in_turns

LAYERS: Final = 36
# A layer of 7,000 tokens of an 8B model, which has eight heads of 128 for keys and values.
LAYER_BYTES: Final = 7_000 * 2 * 8 * 128 * 2
PAGES: Final = KvPages(layout="of a bench", version=0, num_tokens=7_000, data=b"")


def page_rows(repeats: int) -> list[Row]:
    links = LoopbackLinks()
    offers = Offers(owner=f"bench{os.getpid()}", links=links)
    cache = np.random.default_rng(0).integers(0, 256, (LAYERS, LAYER_BYTES), dtype=np.uint8)
    put_s: dict[str, list[float]] = {}

    def moved_s(what: str, memory: str) -> float:
        offer = offers.open((0,))
        assert offer.offered is not None
        started = time.perf_counter()
        _put(offer, cache)
        put_s.setdefault(what, []).append(time.perf_counter() - started)
        for _, pages in pages_of(offer.offered, links.token, memory=memory):
            assert len(pages.data) == cache.nbytes
        return time.perf_counter() - started

    contestants: dict[str, Callable[[], float]] = {
        "copied once": partial(_copied_s, cache),
        "shared memory": partial(moved_s, "shared memory", own_memory()),
        "link": partial(moved_s, "link", "of another host"),
    }
    return [
        {
            "what": f"pages, {what}",
            "megabytes": rounded(cache.nbytes / 1e6),
            **Spread.of([each * 1e3 for each in seconds]).columns("milliseconds"),
            "of_them_on_the_sources_loop": rounded(1e3 * float(np.median(put_s.get(what, seconds)))),
        }
        for what, seconds in in_turns(contestants, repeats=repeats).items()
    ]


def _put(offer: Offer, cache: "np.ndarray[tuple[int, int], np.dtype[np.uint8]]") -> None:
    room = offer.room(0)
    memory = room.take(PAGES, cache.nbytes)
    assert memory is not None, "this machine has no shared memory left"
    for layer, content in enumerate(cache):
        memory[layer * LAYER_BYTES : (layer + 1) * LAYER_BYTES] = content.data
        room.filled((layer + 1) * LAYER_BYTES)
    offer.close()


def _copied_s(cache: "np.ndarray[tuple[int, int], np.dtype[np.uint8]]") -> float:
    started = time.perf_counter()
    cache.copy()
    return time.perf_counter() - started
