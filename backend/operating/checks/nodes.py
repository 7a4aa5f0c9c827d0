"""Checks every node of every Ray, from within: a small job tests store, control URL, clock, sandbox and versions.

Invariants:
- the job holds no device, and leaves nothing behind;
- Rays are checked in parallel, so several take no longer than one.
"""

import shlex
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import Final

from django.db import DatabaseError, InterfaceError

from backend.clock import database_now
from backend.disks import room_at
from backend.environment import Environment
from backend.operating.checks import clock, disks
from backend.operating.checks.findings import Fault, Finding, Verdict, good
from backend.operating.node_assets import keep_found
from backend.operating.ray_cluster import dashboard_of, rays_of, run_on_head
from backend.pools.clusters.addresses import RayAddress
from backend.pools.clusters.dashboard import LauncherError
from backend.site_notices import LEAST_FREE_BYTES
from engine.fit.need import gigabytes
from engine.fit.shared_memory import SETTINGS, shared_memory_need, size_setting
from engine.spec.node_report import COMMAND, NodeAsset, NodeReport, NodeReports, spec_version

WITHIN_S: Final = 120.0
"""It takes 10 s on an idle machine, mostly two imports of Ray, and many times that on a busy one."""
MOST_AT_ONCE: Final = 8
_LAST_WORDS: Final = 300
RayFindings = tuple[list[Finding], list[NodeReport]]

NO_ANSWER = Fault(
    name="nodes.no_answer",
    cure="Ray's nodes cannot run Laminar's jobs: start them with Laminar's engine image, or set LAMINAR_RAY_PYTHON and "
    "PYTHONPATH so that `import engine` works there.",
)
SILENT = Fault(
    name="nodes.silent", cure="Check the log of that node's raylet; remove the node from the cluster, or restart it."
)
FOLDER = Fault(
    name="nodes.folder",
    cure="Mount the same folder at LAMINAR_STORE_DIR on every node as on web and worker, with its jobs/ writable by "
    "the user of Ray.",
)
BUCKET = Fault(
    name="nodes.bucket",
    cure="Give every node LAMINAR_STORE_URL, its endpoint and the same keys as web and worker (AWS_…), with the rights "
    "to put, get and delete.",
)
CONTROL = Fault(
    name="nodes.control",
    cure="Its jobs cannot report: set LAMINAR_CONTROL_URL to an address that every node reaches, and that is this "
    "site's.",
)
SANDBOX = Fault(
    name="nodes.sandbox",
    cure="Jobs with users' code fail there: start the node under Laminar's seccomp profile (see The sandbox), on "
    "Ubuntu 24.04 with its AppArmor profile.",
)
RELEASE = Fault(
    name="nodes.release",
    verdict=Verdict.WARNING,
    cure="Its copy of Laminar is of another release: once its jobs have ended, start it from the engine image of the "
    "same tag.",
)
PACKAGES = Fault(
    name="nodes.packages", cure="Install infra/locks/engine.txt there, or start the node from the engine image."
)

SHARED_MEMORY = Fault(
    name="nodes.shared_memory",
    verdict=Verdict.WARNING,
    cure="Full training of that model may run out of shared memory there; an adapter takes far less. Raise the limit: "
    f"{SETTINGS}.",
)


def check_nodes(environment: Environment) -> Iterator[Finding]:
    """A Ray that does not answer is reported by its own check."""
    token = token_hex(8)
    shown = _shown(environment.store_dir, token)
    command = _command(environment, token if shown else "")
    rays = [(str(ray), ray.address) for ray in rays_of(environment)]
    seen: list[NodeReport] = []
    try:
        with ThreadPoolExecutor(MOST_AT_ONCE) as side_by_side:
            results = [side_by_side.submit(_check_ray, *ray, environment, command) for ray in rays]
            for result in results:
                findings, reports = result.result()
                seen += reports
                yield from findings
    finally:
        if shown:
            shown.unlink(missing_ok=True)
    with suppress(DatabaseError, InterfaceError):  # reported by the check of Postgres
        keep_found(seen, now=database_now())


def _check_ray(called: str, address: RayAddress, environment: Environment, command: str) -> RayFindings:
    """Runs in a thread of its own, so it must not use the database."""
    try:
        ray = dashboard_of(address, environment)
        workers = {host.id for host in ray.hosts() if host.cpus or host.gpus}
    except LauncherError:
        return [], []
    began = time.time()
    try:
        log = run_on_head(ray, f"doctor-{token_hex(8)}", command, within_s=WITHIN_S)
        reported = NodeReports.found_in(log)
    except (LauncherError, ValueError) as error:
        return [NO_ANSWER.found(f"{called}: {error}")], []
    if reported is None:
        log_text = f"the end of its log: {log[-_LAST_WORDS:]}" if log else "it did not report in time"
        return [NO_ANSWER.found(f"{called}: {log_text}")], []
    ended = time.time()
    models = [model for report in reported.nodes for model in report.models]
    largest = max(models, key=lambda model: model.num_bytes, default=None)
    findings = [
        finding
        for report in reported.nodes
        for finding in judge_node(report, began, ended, runs_jobs=report.node_id in workers, largest=largest)
    ]
    return findings, reported.nodes


def _shown(store: Path, token: str) -> Path | None:
    """Creates a marker file for every node to see; None if this user cannot write, or the disk does not answer."""
    with suppress(OSError):
        if room_at(store).silent_s is not None:
            return None
        file = store / "jobs" / f"doctor-{token}"
        file.touch()
        return file
    return None


def _command(environment: Environment, token: str) -> str:
    words = [COMMAND, "--control-url", environment.control_url, "--token", token]
    return 'exec "${LAMINAR_RAY_PYTHON:-python}" -m ' + shlex.join(words)


def judge_node(
    report: NodeReport, began: float, ended: float, *, runs_jobs: bool, largest: NodeAsset | None = None
) -> Iterator[Finding]:
    """`largest`: of the models that lie on any node of this Ray."""
    name = f"node {report.address}"
    if report.silent:
        yield SILENT.found(f"{name}: {report.silent}")
        return
    parts = {FOLDER: report.folder, BUCKET: report.bucket, CONTROL: report.control}
    troubles = [fault.found(f"{name}: {text}") for fault, text in parts.items() if text]
    if report.sandbox and runs_jobs:
        troubles.append(SANDBOX.found(f"{name}: {report.sandbox}"))
    if report.spec != spec_version():
        troubles.append(RELEASE.found(f"{name}: its engine/spec is {report.spec}, expected {spec_version()}"))
    if "torch" not in report.versions:
        troubles.append(PACKAGES.found(f"{name}: torch is not installed"))
    if report.free_bytes < LEAST_FREE_BYTES:
        troubles.append(disks.FULL.found(f"{name}: {report.free_bytes / 1e9:.1f} GB are free at its LAMINAR_STORE_DIR"))
    if runs_jobs and largest is not None and report.shared_bytes:
        troubles += _judge_shared_memory(name, report, largest)
    clock_finding = clock.judge(report.clock, began, ended, name)
    troubles += [clock_finding] if clock_finding.fault else []
    yield from troubles
    if not troubles:
        versions = ", ".join(f"{package} {number}" for package, number in report.versions.items())
        yield good(f"{name}: store, reports, clock{' and sandbox' if runs_jobs else ''} are good; {versions}")


def _judge_shared_memory(name: str, report: NodeReport, largest: NodeAsset) -> Iterator[Finding]:
    needed = shared_memory_need(largest.num_bytes, object_store_bytes=report.object_store_bytes).num_bytes
    if report.shared_bytes < needed:
        model = f"{largest.name} ({gigabytes(largest.num_bytes)})"
        yield SHARED_MEMORY.found(
            f"{name}: {gigabytes(report.shared_bytes)} of shared memory; {model} takes up to {gigabytes(needed)}: "
            f"{size_setting(needed)}"
        )
