"""What a node of the cluster finds when it looks at itself, on its way from a job's log to the control plane.

Invariant: one line of the log holds all of it, so that what others print beside it does not matter.
"""

import hashlib
from functools import cache
from pathlib import Path
from typing import Final, Self

from pydantic import Field

from engine.spec.strict import Strict

_MARK: Final = "laminar-nodes "
COMMAND: Final = "engine.live.run.node_probe"
"""Of Python's -m, on a node."""


MOST_TOLD: Final = 200
"""Of each kind of thing that lies on a node: the line of a log stays short."""


class FoundAsset(Strict):
    """An entry of a node's shared folder, by its name there: no path of the node leaves it."""

    name: str
    kind: str = ""
    """Of a model, as its config.json says it."""
    num_bytes: int = 0


class NodeReport(Strict):
    """A part that is empty is well; else it says what is wrong."""

    node_id: str
    address: str
    silent: str = ""
    """Why nothing was heard of it."""
    clock: float = 0.0
    versions: dict[str, str] = {}
    """Of packages; what is missing is not there."""
    spec: str = ""
    """`spec_version` of its copy of Laminar."""
    folder: str = ""
    """The shared folder: writing, reading, deleting, and seeing what the control plane wrote."""
    bucket: str = ""
    control: str = ""
    """Reporting to the control plane."""
    sandbox: str = ""
    free_bytes: int = 0
    """Of the disk with its part of the shared folder."""
    shared_bytes: int = 0
    """Size of its shared memory (/dev/shm), used or not."""
    object_store_bytes: int = 0
    """The part of it that Ray's object store may take."""
    took_s: float = 0.0
    models: list[FoundAsset] = Field(default_factory=list)
    """At most MOST_TOLD, in the order of their names, as are the others."""
    data: list[FoundAsset] = Field(default_factory=list)
    fetched: list[str] = Field(default_factory=list)
    """Hashes of what it fetched for jobs and still has."""


class NodeReports(Strict):
    nodes: list[NodeReport]

    def line(self) -> str:
        return _MARK + self.model_dump_json()

    @classmethod
    def found_in(cls, log: str) -> Self | None:
        """Raises `ValueError` if the line is there and says something else."""
        lines = [line for line in log.splitlines() if line.startswith(_MARK)]
        return cls.model_validate_json(lines[-1].removeprefix(_MARK)) if lines else None


@cache
def spec_version() -> str:
    """A hash over this folder's sources: equal on both sides of the border if they are of one release."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]
