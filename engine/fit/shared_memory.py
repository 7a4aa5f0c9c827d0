"""Shared memory of one host (/dev/shm): weight versions in transit, and Ray's object store.

    trainer           the published version, and memory for the next
    host of replicas  the relay's versions, and the deltas between them
    one host for both the sum. It is an upper bound: the relay adopts the trainer's memory instead of copying it

Invariant: below `least_bytes` no run of the model works; between that and the need, a job may work and may run out.
"""

import math
from typing import Final

from engine.fit.hosts import SEGMENTS_OF_A_TRAINER, relay_terms, version_bytes
from engine.fit.need import Need, Term, gigabytes
from engine.fit.shape import ModelShape

OBJECT_STORE_BYTES: Final = 10**9
"""Of Ray, unless LAMINAR_RAY_OBJECT_STORE sets another size."""
# A relay keeps the newest version while the next one arrives.
_LEAST_VERSIONS_OF_A_RELAY: Final = 2
SETTINGS: Final = "LAMINAR_RAY_SHM in .env for Compose, the shm volume's sizeLimit on Kubernetes, --shm-size for Docker"


def shared_memory_need(version: int, *, keeps_deltas: bool = True, object_store_bytes: int = 0) -> Need:
    """Of a host that both trains and generates. `version`: its bytes."""
    trained = Term(what="the trainer's version, and memory for the next", num_bytes=SEGMENTS_OF_A_TRAINER * version)
    store = Term(what="Ray's object store", num_bytes=object_store_bytes)
    terms = (trained, *relay_terms(version, keeps_deltas=keeps_deltas), store)
    return Need(of="Shared memory of a host that trains and generates", always=terms)


def least_trainer_bytes(shape: ModelShape, *, lora_rank: int, num_ranks: int) -> int:
    """A host's part of one version: every host of the trainer has at least one rank."""
    return version_bytes(shape, lora_rank) // max(num_ranks, 1)


def least_relay_bytes(shape: ModelShape, *, lora_rank: int, only_evaluates: bool) -> int:
    return version_bytes(shape, lora_rank) * (1 if only_evaluates else _LEAST_VERSIONS_OF_A_RELAY)


def size_setting(num_bytes: int) -> str:
    """As Docker and Compose write it, rounded up."""
    return f"{math.ceil(num_bytes / 2**30)}gb"


def shortage(*, holder: str, num_bytes: int, needed_bytes: int) -> str:
    """For the operator of the host."""
    return (
        f"{holder} has {gigabytes(num_bytes)} of shared memory (/dev/shm), and this model's weights take "
        f"{gigabytes(needed_bytes)} there. Set at least {size_setting(needed_bytes)} ({SETTINGS})."
    )
