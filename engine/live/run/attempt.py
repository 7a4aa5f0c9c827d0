"""One attempt from its first fact to its last: place, wire, supervise, clean up.

Invariants:
- the last fact is `RunFinished`, whatever happened in between, unless the attempt was fenced off;
- no actor and no placement group is left when `run_attempt` returns.
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

from ray.exceptions import RayError

from engine.live.assets.fetching import NotGiven
from engine.live.assets.job_assets import JobAssets
from engine.live.checkpoints.resuming import ResumePoint, open_checkpoint, refuse_outside
from engine.live.checkpoints.store import GivenUp
from engine.live.facts.from_reports import printable
from engine.live.facts.recorder import Recorder
from engine.live.facts.token_texts import texts_of_tokens
from engine.live.process.interruptions import Cancelled, Fenced, Interrupted, Interruptions, OutOfTime, PausedEarly
from engine.live.process.memory import is_out_of_memory
from engine.live.run.model_check import check_model
from engine.live.run.model_source import confined, folder_of, refuse_a_teacher_of_other_words
from engine.live.run.placement import NoCapacity, place
from engine.live.run.supervisor import Supervisor
from engine.live.run.wiring import Folders, Network
from engine.pipeline.effects import EnterPhase
from engine.policy.placement import NoSandbox
from engine.policy.recovery import Patience
from engine.sinks.port import EventSink
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
    """The folder of models, to which names lead; None: the spec may hold the path of any folder."""
    data: Path | None = None
    """The folder of files of prompts, to which names lead; None: any path."""
    jobs: Path | None = None
    """The folder of all jobs' folders, where a checkpoint to go on from must lie; None: anywhere."""
    assets: JobAssets | None = None
    """All data sets and models that the spec names. None: names lead into those folders."""
    recordings: Path | None = None
    """The folder that keeps every brain's words and decisions, to be replayed; None: none."""
    recorded_step: tuple[int, Path] | None = None
    """A step, and the folder that keeps it, to be trained again."""
    patience: Patience = field(default_factory=Patience)
    replicas: int | None = None
    """The number to begin with; None: all of the spec's."""
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
        """`connect`: to Ray. Raises `Fenced`, once everything was ended."""
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
            finished = RunFinished(outcome="paused", message="Paused before it was set up.", ledger=self._ledger)
        except Interrupted:
            finished = self._failed("infrastructure", "the driver was told to end")
        except Exception as error:
            log.warning("attempt failed", exc_info=error)
            finished = self._failed(_failure_class(error), str(error) or type(error).__name__)
        if self._recorder is not None:
            self._recorder.tell_rest()
        self._sink.record(finished)
        log.info("finished outcome=%s message=%s ledger=%s", finished.outcome, finished.message, finished.ledger)
        return finished

    def _run(self, connect: Callable[[], None]) -> RunFinished:
        plan = self._plan
        resume = None if plan.resume_from is None else self._resume_point(plan.resume_from)
        spec, data = self._placed()
        if resume is None:  # else it has been trained on already
            for warning in check_model(spec, data_folder=data, interrupted=self._interruptions.check):
                log.warning("%s", warning)
        refuse_a_teacher_of_other_words(spec)
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
        network = Network(spec=spec, placement=placement, folders=folders, resume=resume, num_replicas=num_replicas)
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

    def _placed(self) -> tuple[JobSpec, Path | None]:
        """The spec with paths in place of names, and the folder to which names still lead."""
        plan, assets = self._plan, self._plan.assets
        if assets is not None:
            return self._beside(lambda is_given_up: assets.placed(plan.spec, check=_unless(is_given_up))), None
        return plan.spec if plan.models is None else confined(plan.spec, plan.models), plan.data

    def _resume_point(self, uri: str) -> ResumePoint:
        if self._plan.jobs is not None:
            refuse_outside(uri, self._plan.jobs)
        return self._beside(lambda is_given_up: open_checkpoint(uri, is_given_up=is_given_up))

    def _beside(self, fetch: Callable[[Callable[[], bool]], T]) -> T:
        """On a thread, which may take an hour, while this one hears what ends the attempt."""
        fetched: Future[T] = Future()
        is_given_up = Event()

        def fetch_it() -> None:
            try:
                fetched.set_result(fetch(is_given_up.is_set))
            except Exception as error:  # noqa: BLE001 - raised where it is waited for
                fetched.set_exception(error)

        Thread(target=fetch_it, name="fetch", daemon=True).start()
        try:
            while not fetched.done():
                self._interruptions.check()
                wait([fetched], timeout=LOOK_UP_EVERY_S)
        finally:
            is_given_up.set()
        return fetched.result()

    @property
    def _ledger(self) -> dict[str, int]:
        return {} if self._recorder is None else self._recorder.ledger

    def _failed(self, failure_class: FailureClass, message: str) -> RunFinished:
        return RunFinished(
            outcome="failed", failure_class=failure_class, message=printable(message), ledger=self._ledger
        )


def _unless(is_given_up: Callable[[], bool]) -> Callable[[], None]:
    def check() -> None:
        if is_given_up():
            raise GivenUp

    return check


def _failure_class(error: Exception) -> FailureClass:
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
        case RayError() | ConnectionError() | NotGiven() | NoSandbox():
            return "infrastructure"
        case _:
            return "platform"
