"""The driver: `python -m engine.live.run.driver`, one process for one attempt, started through the Ray Jobs API.

Reads `order.json` from its working directory (or `--order PATH`). Exits 0 if the run succeeded, was cancelled or
paused, and all facts were delivered, else 1; the facts, not the exit code, hold the outcome.

Invariants:
- the first fact is on disk before anything starts, and facts are still delivered after everything has ended;
- a stale fence ends actors and process at once, and nothing more is recorded.
"""

import argparse
import logging
import sys
from functools import partial
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from engine.live.assets.job_assets import JobAssets
from engine.live.assets.node_cache import NodeCache
from engine.live.process.interruptions import Fenced, Interrupted, obey_signals, raise_on_signals, was_interrupted
from engine.live.process.ray_session import connect_to_cluster, disconnect
from engine.live.process.settings import Settings, log_form
from engine.live.run.attempt import Attempt, AttemptPlan
from engine.process.progress import LoopProgress
from engine.sinks.control_plane import ControlPlane
from engine.sinks.http_shipper import HttpSink
from engine.sinks.lines import LineKeeper, LineShippingSink
from engine.sinks.port import EventSink
from engine.sinks.spool import Spool
from engine.sinks.tracing import SpanSender, TracingSink
from engine.spec.control import AttemptOrder
from engine.spec.fact_segments import SPOOL_FOLDER
from engine.spec.logs.log_subject import this_process_is_about
from engine.spec.logs.log_text import log_to

log = logging.getLogger(__name__)

# The actors are gone by then, so the wait for an unreachable control plane costs one idle process.
DELIVER_WITHIN_S: Final = 6 * 3600.0
INTERRUPTED_DELIVER_WITHIN_S: Final = 10.0  # a SIGKILL usually follows the SIGTERM


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m engine.live.run.driver", description="Runs one attempt of a job.")
    parser.add_argument("--order", type=Path, default=Path("order.json"), help="the file with the attempt's order")
    arguments = parser.parse_args()
    own_lines = LineKeeper("driver")
    try:
        log_to(fmt="%(asctime)s %(levelname)s %(message)s", form=log_form())
        logging.getLogger("httpx").setLevel(logging.WARNING)  # else it logs every call
        logging.getLogger().addHandler(own_lines)
        order = AttemptOrder.read(arguments.order.read_bytes())
        settings = Settings.from_environment()
        folder = settings.attempt_folder(job=order.job, attempt=order.attempt, fence=order.fence)
    except (OSError, ValidationError, ValueError) as error:
        # There is no attempt to report yet; the control plane sees the Ray job fail and reads its log.
        log.error("driver: %s", error)
        return 1
    this_process_is_about(job=order.job, attempt=order.attempt)
    obey_signals()
    try:
        return run_order(order, folder, settings=settings, own_lines=own_lines)
    except Interrupted:
        log.error("interrupted; undelivered facts are in %s", folder)
        return 1


def run_order(order: AttemptOrder, folder: Path, *, settings: Settings, own_lines: LineKeeper) -> int:
    log.info("job=%s attempt=%d fence=%d folder=%s", order.job, order.attempt, order.fence, folder)
    control = ControlPlane(order.control_url, order.token)
    sink = HttpSink(spool=Spool(folder / SPOOL_FOLDER), control=control, attempt=order.attempt, fence=order.fence)
    plan = AttemptPlan(
        spec=order.spec,
        checkpoints=folder / "checkpoints",
        resume_from=order.resume_from,
        replicas=order.replicas,
        runtime_left_s=order.runtime_left_s,
        models=settings.models,
        data=settings.data,
        jobs=settings.jobs,
        assets=_assets_of(order, settings),
        pool=order.pool,
    )
    sender = SpanSender(settings.traces, job=order.job) if settings.traces else None
    base = LineShippingSink(sink, own_lines)
    traced: EventSink = base if sender is None else TracingSink(base, sender, attempt=order.attempt, fence=order.fence)
    attempt = Attempt(plan, traced, sink.requests)
    progress = LoopProgress()
    progress.attach_thread()
    sink.start(step=lambda: attempt.step, turns=lambda: progress.piece.serial)
    try:
        finished = attempt.run(partial(connect_to_cluster, log_form()))
    except Fenced as fenced:
        log.error("fenced: %s", fenced)
        sink.close(timeout_s=0)
        return 1
    finally:
        disconnect()
    raise_on_signals()
    is_delivered = sink.close(INTERRUPTED_DELIVER_WITHIN_S if was_interrupted() else DELIVER_WITHIN_S)
    control.close()
    if sender is not None:
        sender.close()
    if not is_delivered:
        log.error("some facts were not delivered; they are in %s", folder)
    return 0 if is_delivered and finished.outcome != "failed" else 1


def _assets_of(order: AttemptOrder, settings: Settings) -> JobAssets | None:
    if order.assets is None:
        return None
    cache = NodeCache(root=settings.node_cache, max_bytes=settings.node_cache_bytes)
    return JobAssets(ordered=order.assets, control_url=order.control_url, store=settings.store, cache=cache)


if __name__ == "__main__":
    sys.exit(main())
