"""The self-check of a cluster's node, sent to the control plane in a job's log.

Invariant: one line of the log holds all of it, so other output in the log does not matter.
"""

import hashlib
from functools import cache
from pathlib import Path
from typing import Final, Self

from pydantic import Field

from engine.spec.strict import Strict

_MARK: Final = "laminar-nodes "
COMMAND: Final = "engine.live.run.node_probe"
"""The module for `python -m`, on a node."""


MOST_REPORTED: Final = 200
"""Entries of each kind, so that the line stays short."""


class NodeAsset(Strict):
    """An entry of a node's shared folder, by its name: no path of the node is sent."""

    name: str
    kind: str = ""
    """A model's type, from its config.json."""
    num_bytes: int = 0


class NodeReport(Strict):
    """An empty field is good; otherwise it holds the problem."""

    node_id: str
    address: str
    silent: str = ""
    """Why there is no report."""
    clock: float = 0.0
    versions: dict[str, str] = {}
    """Of packages; what is missing is not there."""
    spec: str = ""
    """`spec_version` of its copy of Laminar."""
    folder: str = ""
    """The shared folder: write, read, delete, and see the control plane's file."""
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
    models: list[NodeAsset] = Field(default_factory=list)
    """At most MOST_REPORTED, in the order of their names, as are the others."""
    data: list[NodeAsset] = Field(default_factory=list)
    fetched: list[str] = Field(default_factory=list)
    """Hashes of fetched assets in its cache."""


class NodeReports(Strict):
    nodes: list[NodeReport]

    def line(self) -> str:
        return _MARK + self.model_dump_json()

    @classmethod
    def found_in(cls, log: str) -> Self | None:
        """Raises `ValueError` for a marked line that cannot be parsed."""
        lines = [line for line in log.splitlines() if line.startswith(_MARK)]
        return cls.model_validate_json(lines[-1].removeprefix(_MARK)) if lines else None


@cache
def spec_version() -> str:
    """A hash over the sources of `engine/spec`: equal on both sides of the border if they are of one release."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]
