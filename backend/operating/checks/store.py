"""Checks the object store: writing, reading, deleting. A hanging disk or server is reported as silent, and is not
checked again until it has answered."""

from collections import defaultdict
from collections.abc import Iterator
from secrets import token_hex
from typing import Final

from backend.background_call import BackgroundCall
from backend.environment import Environment
from backend.operating.checks.findings import Fault, Finding, good
from backend.store.chosen import store
from backend.store.port import NotStored, StoreError

WRITES_NOT = Fault(
    name="store.writes_not",
    cure="Check LAMINAR_STORE_URL, its endpoint and its keys (s3:PutObject); for a folder, its owner and its disk. "
    "Checkpoints and trajectories are not saved until then.",
)
READS_NOT = Fault(
    name="store.reads_not",
    cure="Grant these keys s3:GetObject and s3:ListBucket; for a folder, mount one that keeps what was written.",
)
DELETES_NOT = Fault(
    name="store.deletes_not",
    cure="Grant these keys s3:DeleteObject; otherwise old objects stay, and cost money, forever.",
)
SILENT = Fault(
    name="store.silent",
    cure="Check its server and the network in between; for a folder, its mount (disk.silent). Everything that needs "
    "the store hangs until then.",
)
PATIENCE_S: Final = 20.0  # a status page waits for it; a slow bucket answers by then
_asides: Final[defaultdict[str, BackgroundCall[list[Finding]]]] = defaultdict(
    lambda: BackgroundCall(deadline_s=PATIENCE_S)
)


def check_store(environment: Environment) -> Iterator[Finding]:
    heard = _asides[_place(environment)].newest(lambda: list(_probe(environment)))
    if heard.silent_s is None:
        yield from heard.last or ()
    else:
        yield SILENT.found(f"{_place(environment)} has not responded for {heard.silent_s:.0f} s")


def _place(environment: Environment) -> str:
    return environment.store_url or f"the folder {environment.store_dir}"


def _probe(environment: Environment) -> Iterator[Finding]:
    key, content = f"doctor/{token_hex(8)}", token_hex(32).encode()
    place = _place(environment)
    try:
        chosen = store()
        chosen.put(key, content)
    except (StoreError, OSError, ValueError) as error:
        yield WRITES_NOT.found(f"{place}: {type(error).__name__}: {error}")
        return
    try:
        is_read = chosen.get(key) == content
        yield (
            good(f"{place} stores and returns objects")
            if is_read
            else READS_NOT.found(f"{place}: returned other bytes than were written")
        )
    except (StoreError, OSError) as error:
        yield READS_NOT.found(f"{place}: {type(error).__name__}: {error}")
    try:
        chosen.delete(key)
        chosen.get(key)
        yield DELETES_NOT.found(f"{place}: a deleted object still exists")
    except NotStored:
        yield good("and deletes them")
    except (StoreError, OSError) as error:
        yield DELETES_NOT.found(f"{place}: {type(error).__name__}: {error}")
