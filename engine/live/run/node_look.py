"""What a node finds when it looks at itself: its clock and versions, its way to store and control plane, its sandbox.

Invariants:
- every part is tried as a job would use it, whatever became of the others, and ends within seconds;
- nothing that was written stays.
"""

import shutil
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final
from uuid import uuid4

import httpx

from engine.environments.sandbox.outcome import Finished
from engine.environments.sandbox.run import run_python
from engine.live.checkpoints.store import RemoteCheckpoints
from engine.live.checkpoints.trial import try_out
from engine.live.process.settings import Settings
from engine.live.process.shared_memory import shared_memory_bytes
from engine.live.run.found_assets import found_data, found_hashes, found_models
from engine.spec.node_report import NodeReport, spec_version

_PATIENCE_S: Final = 5.0
_PACKAGES: Final = ("ray", "torch", "transformers", "safetensors", "pydantic")
_FACTS: Final = "/internal/engine/facts"


def look_around(node: str, address: str, control_url: str, token: str) -> NodeReport:
    """On the node itself."""
    began = time.monotonic()
    settings = Settings.from_environment()
    return NodeReport(
        node_id=node,
        address=address,
        folder=_trouble(lambda: _use_folder(settings.jobs, token)),
        bucket=_trouble(_use_bucket),
        control=_trouble(lambda: _report_to(control_url)),
        sandbox=_trouble(_use_sandbox),
        versions={name: found for name in _PACKAGES if (found := _version_of(name))},
        spec=spec_version(),
        free_bytes=shutil.disk_usage(settings.jobs if settings.jobs.is_dir() else settings.store).free,
        shared_bytes=shared_memory_bytes(),
        models=found_models(settings.models),
        data=found_data(settings.data),
        fetched=found_hashes(settings.node_cache),
        clock=time.time(),
        took_s=time.monotonic() - began,
    )


def _trouble(act: Callable[[], None]) -> str:
    try:
        act()
    except Exception as error:  # noqa: BLE001  # whatever it is, it is what was looked for
        return line_of(error)
    return ""


def line_of(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[-300:]


def _version_of(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _use_folder(folder: Path, token: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)  # as the first driver does
    own = folder / f"doctor-{uuid4().hex}"
    own.write_text(own.name)
    try:
        if own.read_text() != own.name:
            raise OSError(f"{folder} gives back something else than was written")
    finally:
        own.unlink()
    if token and not (folder / f"doctor-{token}").is_file():
        raise OSError(f"{folder} does not show what the control plane writes there: it is another folder")


def _use_bucket() -> None:
    remote = RemoteCheckpoints.from_environment()
    if remote is not None:
        try_out(remote.store)


def _report_to(control_url: str) -> None:
    """As a driver does; who has no token is answered 401."""
    answer = httpx.post(control_url + _FACTS, json={}, timeout=_PATIENCE_S, trust_env=False)
    if answer.status_code != httpx.codes.UNAUTHORIZED:
        leads_to = f", which leads to {answer.headers['location']}" if "location" in answer.headers else ""
        raise OSError(f"{control_url} answers {answer.status_code}{leads_to}")


def _use_sandbox() -> None:
    outcome = run_python("print(6 * 7)")
    if not (isinstance(outcome, Finished) and outcome.exit_code == 0):
        raise OSError(f"the sandbox did not run a line of code: {outcome}")
