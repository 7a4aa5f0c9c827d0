"""A node's check of itself: clock and versions, access to store and control plane, sandbox.

Invariants:
- each check uses its resource as a job would, whatever the other checks found, and ends within seconds;
- no file that was written stays.
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
from engine.live.run.node_assets import found_hashes, node_data, node_models
from engine.spec.node_report import NodeReport, spec_version

_PATIENCE_S: Final = 5.0
_PACKAGES: Final = ("ray", "torch", "transformers", "safetensors", "pydantic")
_FACTS: Final = "/internal/engine/facts"


def inspect_node(node: str, address: str, control_url: str, token: str) -> NodeReport:
    """Called on the node itself."""
    began = time.monotonic()
    settings = Settings.from_environment()
    return NodeReport(
        node_id=node,
        address=address,
        folder=_run_check(lambda: _use_folder(settings.jobs, token)),
        bucket=_run_check(_use_bucket),
        control=_run_check(lambda: _report_to(control_url)),
        sandbox=_run_check(_use_sandbox),
        versions={name: installed for name in _PACKAGES if (installed := _version_of(name))},
        spec=spec_version(),
        free_bytes=shutil.disk_usage(settings.jobs if settings.jobs.is_dir() else settings.store).free,
        shared_bytes=shared_memory_bytes(),
        models=node_models(settings.models),
        data=node_data(settings.data),
        fetched=found_hashes(settings.node_cache),
        clock=time.time(),
        took_s=time.monotonic() - began,
    )


def _run_check(act: Callable[[], None]) -> str:
    try:
        act()
    except Exception as error:  # noqa: BLE001  # any error is a finding of the check
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
            raise OSError(f"{folder} returned other bytes than were written")
    finally:
        own.unlink()
    if token and not (folder / f"doctor-{token}").is_file():
        raise OSError(f"{folder} lacks the control plane's file: it is another folder; mount the control plane's store")


def _use_bucket() -> None:
    remote = RemoteCheckpoints.from_environment()
    if remote is not None:
        try_out(remote.store)


def _report_to(control_url: str) -> None:
    """Posts as a driver does, without a token: 401 is the expected answer."""
    answer = httpx.post(control_url + _FACTS, json={}, timeout=_PATIENCE_S, trust_env=False)
    if answer.status_code != httpx.codes.UNAUTHORIZED:
        redirect = f", a redirect to {answer.headers['location']}" if "location" in answer.headers else ""
        raise OSError(f"{control_url} answers {answer.status_code}{redirect}")


def _use_sandbox() -> None:
    outcome = run_python("print(6 * 7)")
    if not (isinstance(outcome, Finished) and outcome.exit_code == 0):
        raise OSError(f"the sandbox cannot run code: {outcome}")
