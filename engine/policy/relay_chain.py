"""The relay chain: its order, the claims to lead it, and the chunk size of weights.

    trainer ──▶ master ──▶ relay ──▶ relay ──▶ …      every relay forwards chunk i while i+1 arrives

Invariants:
- a claim to the lead contains the incarnation and the host of the relay that makes it, so no two relays can make the
  same claim, whatever they know of each other;
- the claim alone determines the order: the master, then the other hosts by number;
- a host that is believed dead is skipped, never waited for.
"""

from collections.abc import Callable, Sequence
from math import ceil, floor, sqrt
from typing import Final

# A claim encodes a term, a relay's incarnation and its host. Both bounds exceed what any job may have.
MAX_HOSTS: Final = 4_096
MAX_LIVES: Final = 2**20

# Fixed cost of a hop: a frame, the report of its hash and the brain's turn; 0.3 to 1 ms measured in Python.
HOP_S: Final = 0.0005
# Throughput of a link; loopback on few cores and 10 Gb/s Ethernet are both near it.
LINK_BYTES_PER_S: Final = 1e9
# Below this a chunk is mostly overhead, above it a slow link has no progress to show for seconds.
MIN_CHUNK_BYTES: Final = 2**18
MAX_CHUNK_BYTES: Final = 2**24


def master_of(claim: int) -> int:
    return claim % MAX_HOSTS


def next_claim(known: int, host: int, incarnation: int) -> int:
    """The smallest claim above `known` that this incarnation of the host can make."""
    term_size = MAX_HOSTS * MAX_LIVES
    own = incarnation * MAX_HOSTS + host
    term = known // term_size
    return term * term_size + own if term * term_size + own > known else (term + 1) * term_size + own


def chain_order(hosts: Sequence[int], claim: int) -> tuple[int, ...]:
    master = master_of(claim)
    return (master, *sorted(host for host in hosts if host != master))


def downstream(order: Sequence[int], host: int, is_alive: Callable[[int], bool]) -> int | None:
    """The next live host, which `host` sends to; None at the end of the chain."""
    return next((after for after in order[order.index(host) + 1 :] if is_alive(after)), None)


def upstream(order: Sequence[int], host: int, is_alive: Callable[[int], bool]) -> int | None:
    """The live host that sends to `host`; None if all before it are dead: then `host` claims the lead."""
    return next((before for before in reversed(order[: order.index(host)]) if is_alive(before)), None)


def best_num_chunks(num_relays: int, num_bytes: int, *, hop_s: float, bytes_per_s: float) -> int:
    """k that makes `broadcast_s` least: sqrt((p − 2)·M / (α·B)), rounded to whichever whole number is better."""
    exact = sqrt(max(0, num_relays - 2) * num_bytes / (hop_s * bytes_per_s))
    return min(
        {max(1, floor(exact)), max(1, ceil(exact))},
        key=lambda num_chunks: broadcast_s(num_relays, num_chunks, num_bytes, hop_s=hop_s, bytes_per_s=bytes_per_s),
    )


def broadcast_s(num_relays: int, num_chunks: int, num_bytes: int, *, hop_s: float, bytes_per_s: float) -> float:
    """From the first byte at the master's predecessor to the last at the last relay: (p + k − 2)(α + M/(kB))."""
    hops = max(1, num_relays + num_chunks - 2)
    return hops * (hop_s + num_bytes / (num_chunks * bytes_per_s))


def chunk_bytes_for(num_bytes: int, num_relays: int) -> int:
    """A multiple of 4 KiB. Depends on the job's shape only, so that every master cuts a version alike."""
    num_chunks = best_num_chunks(num_relays, num_bytes, hop_s=HOP_S, bytes_per_s=LINK_BYTES_PER_S)
    even = -(-num_bytes // num_chunks)
    return min(max(-(-even // 4096) * 4096, MIN_CHUNK_BYTES), MAX_CHUNK_BYTES)
