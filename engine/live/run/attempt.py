"""One attempt from its first fact to its last: place, wire, supervise, clean up.

Invariants:
- the last fact is `RunFinished`, whatever happens before, unless the attempt was fenced off;
- no actor and no placement group is left when `Attempt.run` returns.
"""

import logging
import os
import socket
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import Final, TypeVar

from ray.exceptions import RayActorError, RayError, RayTaskError, WorkerCrashedError

from engine.live.assets.fetching import AssetRefused
from engine.live.assets.job_assets import JobAssets
from engine.live.checkpoints.resuming import ResumePoint, is_of_job, open_checkpoint, refuse_outside
from engine.live.checkpoints.store import GivenUp
from engine.live.facts.from_reports import printable
from engine.live.facts.recorder import Recorder
from engine.live.facts.token_texts import texts_of_tokens
from engine.live.process.interruptions import Cancelled, Fenced, Interrupted, Interruptions, OutOfTime, PausedEarly
from engine.live.process.memory import is_out_of_memory
from engine.live.run.model_check import check_model
from engine.live.run.model_source import confined, folder_of, refuse_teacher_vocabulary
from engine.live.run.placement import NoCapacity, place
from engine.live.run.supervisor import Supervisor
from engine.live.run.wiring import Folders, Network
from engine.pipeline.effects import EnterPhase
from engine.pipeline.plan import Plan
from engine.policy.placement import NoSandbox
from engine.policy.recovery import Patience
from engine.sinks.port import EventSink
from engine.spec.causes import PlatformCause
from engine.spec.control import ControlRequest, PoolTerms
from engine.spec.facts import DriverStarted, FailureClass, RequestAcknowledged, RunFinished
from engine.spec.job import JobSpec
from engine.training.checkpoint.folder import CheckpointUnverified

log = logging.getLogger(__name__)
T = TypeVar("T")

LOOK_UP_EVERY_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptPlan:
    spec: JobSpec
    checkpoints: Path
    resume_from: str | None = None
    models: Path | None = None
    """The folder in which model names are looked up; None: the spec may have the path of any folder."""
    data: Path | None = None
    """The folder in which names of prompt files are looked up; None: any path."""
    jobs: Path | None = None
    """The folder of all jobs' folders, which must hold the checkpoint to resume from; None: anywhere."""
    assets: JobAssets | None = None
    """All data sets and models that the spec names. None: names are looked up in those folders."""
    recordings: Path | None = None
    """The folder for recordings of every brain, for replays; None: no recordings."""
    recorded_step: tuple[int, Path] | None = None
    """A step to record, and the folder for it, so that it can be trained again."""
    patience: Patience = field(default_factory=Patience)
    replicas: int | None = None
    """The number at the start; None: all of the spec's."""
    runtime_left_s: float | None = None
    """None: the spec's max_runtime_s."""
    pool: PoolTerms = field(default_factory=PoolTerms)


class Attempt:
    def __init__(self, plan: AttemptPlan, sink: EventSink, requests: Callable[[], list[ControlRequest]] = list) -> None:
        self._plan, self._sink = plan, sink
        self._recorder: Recorder | None = None
        left_s = plan.spec.max_runtime_s if plan.runtime_left_s is None else plan.runtime_left_s
        self._interruptions = Interruptions(requests, max_runtime_s=left_s)

    @property
    def step(self) -> int:
        return 0 if self._recorder is None else self._recorder.step

    def run(self, connect: Callable[[], None]) -> RunFinished:
        """`connect`: connects to Ray. Raises `Fenced` after everything was ended."""
        self._sink.record(DriverStarted(host=printable(socket.gethostname(), 255), pid=os.getpid()))
        try:
            finished = self._run(connect)
        except Fenced:
            raise
        except Cancelled as cancelled:
            self._sink.record(RequestAcknowledged(request_id=cancelled.request_id))
            finished = RunFinished(outcome="cancelled", message="cancelled on request", ledger=self._ledger)
        except PausedEarly as paused:
            self._sink.record(RequestAcknowledged(request_id=paused.request_id))
            finished = RunFinished(outcome="paused", message="Paused before the run started.", ledger=self._ledger)
        except Interrupted:
            message = "the driver was interrupted (SIGTERM or SIGINT)"
            finished = self._make_failure(PlatformCause.DRIVER_STOPPED, message)
        except BaseException as error:
            log.warning("attempt failed", exc_info=error)
            finished = self._make_failure(
                _find_cause(error) or _failure_class(error), str(error) or type(error).__name__
            )
        if self._recorder is not None:
            self._recorder.flush()
        self._sink.record(finished)
        log.info("finished outcome=%s message=%s ledger=%s", finished.outcome, finished.message, finished.ledger)
        return finished

    def _run(self, connect: Callable[[], None]) -> RunFinished:
        plan = self._plan
        resume = None if plan.resume_from is None else self._resume_point(plan.resume_from)
        spec, data = self._resolve_names()
        if resume is None:  # else an earlier attempt has checked the model
            for warning in check_model(spec, data_folder=data, interrupted=self._interruptions.check):
                log.warning("%s", warning)
        refuse_teacher_vocabulary(spec)
        num_replicas = min(plan.replicas or spec.rollout.replicas, spec.rollout.replicas)
        start_step = 0 if resume is None else resume.step
        self._recorder = recorder = Recorder(
            self._sink, start_step=start_step, spell=texts_of_tokens(folder_of(spec.model.source))
        )
        recorder.announce(EnterPhase(phase="provisioning"))
        connect()
        placement = place(spec, plan.pool, num_replicas=num_replicas, check=self._interruptions.check)
        recorder.announce(EnterPhase(phase="loading_weights"))
        folders = Folders(
            checkpoints=plan.checkpoints,
            journal=plan.checkpoints.parent / "journal",
            data=data,
            assets=plan.assets,
            recordings=plan.recordings,
            recorded_step=plan.recorded_step,
        )
        network = Network(
            spec=spec,
            plan=Plan.from_spec(spec, starts_at=start_step if self._is_of_another_job(plan.resume_from) else 0),
            placement=placement,
            folders=folders,
            resume=resume,
            num_replicas=num_replicas,
        )
        try:
            supervisor = Supervisor(
                network=network,
                recorder=recorder,
                listen=self._interruptions.listen,
                patience=plan.patience,
                recordings=plan.recordings,
                runtime_left_s=self._interruptions.left_s,
            )
            return supervisor.run()
        finally:
            network.end_all()

    def _resolve_names(self) -> tuple[JobSpec, Path | None]:
        """Returns the spec with paths for names, and the folder in which remaining names are looked up."""
        plan, assets = self._plan, self._plan.assets
        if assets is not None:
            return self._run_in_thread(lambda is_given_up: assets.placed(plan.spec, check=_unless(is_given_up))), None
        return plan.spec if plan.models is None else confined(plan.spec, plan.models), plan.data

    def _resume_point(self, uri: str) -> ResumePoint:
        if self._plan.jobs is not None:
            refuse_outside(uri, self._plan.jobs)
        point = self._run_in_thread(lambda is_given_up: open_checkpoint(uri, is_given_up=is_given_up))
        has_base = not self._is_of_another_job(uri) and not self._plan.spec.only_evaluates
        return point if has_base else point.without_base()

    def _is_of_another_job(self, checkpoint: str | None) -> bool:
        if checkpoint is None or self._plan.jobs is None:
            return False
        return not is_of_job(checkpoint, self._plan.checkpoints.parent.parent)

    def _run_in_thread(self, fetch: Callable[[Callable[[], bool]], T]) -> T:
        """Runs a fetch, which may take an hour, on a thread, while this one checks for interruptions."""
        result: Future[T] = Future()
        is_given_up = Event()

        def run_fetch() -> None:
            try:
                result.set_result(fetch(is_given_up.is_set))
            except BaseException as error:  # noqa: BLE001 - raised by the caller's `result`
                result.set_exception(error)

        Thread(target=run_fetch, name="fetch", daemon=True).start()
        try:
            while not result.done():
                self._interruptions.check()
                wait([result], timeout=LOOK_UP_EVERY_S)
        finally:
            is_given_up.set()
        return result.result()

    @property
    def _ledger(self) -> dict[str, int]:
        return {} if self._recorder is None else self._recorder.ledger

    def _make_failure(self, why: PlatformCause | FailureClass, message: str) -> RunFinished:
        cause = why if isinstance(why, PlatformCause) else None
        return RunFinished(
            outcome="failed",
            failure_class="infrastructure" if isinstance(why, PlatformCause) else why,
            cause=cause,
            message=printable(message),
            ledger=self._ledger,
        )


def _unless(is_given_up: Callable[[], bool]) -> Callable[[], None]:
    def check() -> None:
        if is_given_up():
            raise GivenUp

    return check


def _find_cause(error: BaseException) -> PlatformCause | None:
    """None: not one of the platform's named causes. An actor that died or raised is a symptom."""
    match error:
        case NoSandbox():
            return PlatformCause.NO_SANDBOX
        case _ if is_out_of_memory(error):
            return None
        case RayActorError() | RayTaskError() | WorkerCrashedError():
            return None
        case RayError():
            return PlatformCause.RAY_LOST
        case ConnectionError() | AssetRefused():
            return PlatformCause.UNREACHABLE
        case _:
            return None


def _failure_class(error: BaseException) -> FailureClass:
    match error:
        case OutOfTime():
            return "timeout"
        case NoCapacity():
            return "capacity"
        case CheckpointUnverified():
            return "data"
        case ValueError():
            return "config"
        case _ if is_out_of_memory(error):
            return "memory"
        case _:
            return "platform"
