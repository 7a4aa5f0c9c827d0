"""The store of large things, from here: writing, reading, deleting. A folder whose disk hangs, or a server that never
ends its answer, is told of as silent, and is not asked again until it has answered."""

from collections import defaultdict
from collections.abc import Iterator
from secrets import token_hex
from typing import Final

from backend.aside import Aside
from backend.environment import Environment
from backend.operating.checks.findings import Fault, Finding, good
from backend.store.chosen import store
from backend.store.port import NotStored, StoreError

WRITES_NOT = Fault(
    name="store.writes_not",
    cure="See to LAMINAR_STORE_URL, its endpoint and its keys (the right s3:PutObject); of a folder, to its owner and "
    "its disk. Checkpoints and trajectories are not kept until then.",
)
READS_NOT = Fault(
    name="store.reads_not",
    cure="Give these keys the rights s3:GetObject and s3:ListBucket; of a folder, mount one that keeps what it is "
    "given.",
)
DELETES_NOT = Fault(
    name="store.deletes_not",
    cure="Give these keys the right s3:DeleteObject; without it what is old stays, and is paid for, for ever.",
)
SILENT = Fault(
    name="store.silent",
    cure="See to its server and the network between; of a folder, to its mount (disk.silent). Whatever needs the store "
    "hangs until then.",
)
PATIENCE_S: Final = 20.0  # a status page waits for it; a bucket that is slow today answers by then
_asides: Final[defaultdict[str, Aside[list[Finding]]]] = defaultdict(lambda: Aside(deadline_s=PATIENCE_S))


def look_at_store(environment: Environment) -> Iterator[Finding]:
    heard = _asides[_place(environment)].newest(lambda: list(_looked(environment)))
    if heard.silent_s is None:
        yield from heard.last or ()
    else:
        yield SILENT.found(f"{_place(environment)} has not answered for {heard.silent_s:.0f} s")


def _place(environment: Environment) -> str:
    return environment.store_url or f"the folder {environment.store_dir}"


def _looked(environment: Environment) -> Iterator[Finding]:
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
            good(f"{place} keeps what it is given")
            if is_read
            else READS_NOT.found(f"{place}: something else came back")
        )
    except (StoreError, OSError) as error:
        yield READS_NOT.found(f"{place}: {type(error).__name__}: {error}")
    try:
        chosen.delete(key)
        chosen.get(key)
        yield DELETES_NOT.found(f"{place}: what was deleted is still there")
    except NotStored:
        yield good("and deletes it")
    except (StoreError, OSError) as error:
        yield DELETES_NOT.found(f"{place}: {type(error).__name__}: {error}")
