"""The stamp of an environment: the interpreter and the locks that it was made from.

Invariant: a virtual environment counts as finished only once its stamp is written, last: one that was interrupted is
made again.
"""

from __future__ import annotations

import hashlib
import json
import sys

from infra.setup.paths import Paths

# The locks of each environment, in addition to torch.
LAYERS = {"local": ["local"], "dev": ["local", "dev"], "vllm": ["vllm"], "vllm-cuda": ["vllm-cuda"]}


def wanted(paths: Paths, lock: str) -> dict[str, str]:
    """The origin of a finished environment: the interpreter's version and the locks, by digest."""
    names = ["torch", "cuda", *LAYERS[lock]]
    digests = {name: hashlib.sha256((paths.locks / f"{name}.txt").read_bytes()).hexdigest() for name in names}
    return {"python": ".".join(map(str, sys.version_info[:3])), **digests}


def made_from(paths: Paths) -> dict[str, str]:
    """Empty for an environment that is missing, unfinished, or whose interpreter is gone."""
    if not paths.python.exists():
        return {}
    try:
        stamp = json.loads(paths.stamp.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def is_finished(paths: Paths, lock: str) -> bool:
    return wanted(paths, lock).items() <= made_from(paths).items()


def finish(paths: Paths, lock: str) -> None:
    paths.stamp.write_text(json.dumps(wanted(paths, lock)), encoding="utf-8")
