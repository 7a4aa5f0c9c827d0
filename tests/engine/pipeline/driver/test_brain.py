"""The driver's decisions: readiness, phases, pauses, resizes, and the run's one end."""

from dataclasses import replace

import pytest

from engine.pipeline.driver.brain import DriverBrain
from engine.pipeline.effects import (
    Acknowledge,
    AnnounceReady,
    AnnounceSize,
    Effect,
    EndPart,
    EndRun,
    EnterPhase,
    Send,
    StartPart,
)
from engine.pipeline.messages.addresses import DATA, TRAINER, environment_address, rollout_address
from engine.pipeline.messages.message import Message, Tick
from engine.pipeline.messages.to_data import BatchWanted, PauseRequested
from engine.pipeline.messages.to_driver import (
    CheckpointReported,
    EvaluationReported,
    EvaluationStarted,
    FaultReported,
    PartEnded,
    PartFinished,
    PartStarted,
    PauseAsked,
    ReplicaObserved,
    ReplicaReady,
    ResizeAsked,
    ResizeReported,
    RunBroken,
    StepReported,
    TrainerPaused,
    TrainerReady,
)
from engine.pipeline.messages.to_manager import PartLost, PartReported, ResizeOrdered
from engine.policy.lineage import WeightsId
from engine.policy.progress import LOOP, Piece
from engine.policy.recovery import MAX_LOSSES, Patience
from tests.engine.pipeline.brain_builders import PLAN, of

ENVIRONMENT = environment_address(0)
LIMIT_S = 50.0
PATIENCE = Patience(silent_s=5.0, start_s=60.0, nothing_moves_s=LIMIT_S)
LOADED = (
    TrainerReady(num_parameters=9),
    ReplicaReady(replica=0, incarnation=0),
    ReplicaReady(replica=1, incarnation=0),
)
READY = AnnounceReady(num_replicas=2, num_parameters=9)


class DriverProbe:
    """A driver under test, with a clock."""

    def __init__(self, *, num_environments: int = 1, runtime_left_s: float | None = None) -> None:
        self.now = 0.0
        self.brain = DriverBrain(
            replace(PLAN, num_environments=num_environments),
            now=self.now,
            num_replicas=2,
            max_replicas=4,
            leave_within_s=3.0,
            patience=PATIENCE,
            runtime_left_s=runtime_left_s,
        )

    def send(self, *messages: Message) -> list[Effect]:
        return [effect for message in messages for effect in self.brain.handle(message, self.now)]

    def wait(self, seconds: float, *, alive: bool = True, incarnation: int = 0) -> list[Effect]:
        """Ticks every second; the environment sends heartbeats if `alive`."""
        effects: list[Effect] = []
        for _ in range(int(seconds)):
            self.now += 1.0
            if alive:
                effects += self.send(PartReported(part=ENVIRONMENT, incarnation=incarnation))
            effects += self.send(Tick())
        return effects


def step(number: int) -> StepReported:
    return StepReported(step=number, metrics={}, to_read=())


def observed(num_decoded: int, *, num_with_environment: int = 0) -> ReplicaObserved:
    return ReplicaObserved(
        replica=0,
        incarnation=0,
        version=0,
        observed_at=0.0,
        spans=(),
        kv_used=0.0,
        num_running=0,
        num_waiting=0,
        num_with_environment=num_with_environment,
        num_prefilled=0,
        num_decoded=num_decoded,
    )


def phases(effects: list[Effect]) -> list[str]:
    return [effect.phase for effect in effects if isinstance(effect, EnterPhase)]


def sends(effects: list[Effect]) -> list[Effect]:
    return [effect for effect in effects if isinstance(effect, Send) and isinstance(effect.message, PauseRequested)]


def ends(effects: list[Effect]) -> list[EndRun]:
    return [effect for effect in effects if isinstance(effect, EndRun)]


# ── readiness and phases ──────────────────────────────────────────────────────────────────────────────────────────────


def test_run_is_ready_once_trainer_and_replicas_hold_weights() -> None:
    driver = DriverProbe()
    trainer, first, second = LOADED
    assert driver.send(trainer, first, replace(first, incarnation=1)) == []
    assert driver.send(second) == [READY, EnterPhase(phase="training")]
    assert driver.send(*LOADED) == []


def test_phases_follow_a_job_and_never_go_back() -> None:
    driver = DriverProbe()
    evaluated = EvaluationReported(weights=WeightsId(0, 0), num_prompts=1, reward_mean=0, reward_std=0, length_mean=1)
    assert phases(driver.send(*LOADED)) == ["training"], "the first evaluation runs in parallel"
    assert phases(driver.send(step(1), evaluated, step(2), EvaluationStarted(version=2), step(2))) == ["finalizing"]


def test_phases_of_an_evaluation_only_job() -> None:
    driver = DriverBrain(replace(PLAN, steps=0), now=0.0, num_replicas=1)
    evaluated = EvaluationReported(weights=WeightsId(0, 5), num_prompts=1, reward_mean=0, reward_std=0, length_mean=1)
    reports = (LOADED[0], EvaluationStarted(version=5), LOADED[1], evaluated)
    effects = [effect for report in reports for effect in driver.handle(report, 0.0)]
    assert effects == [AnnounceReady(num_replicas=1, num_parameters=9), EnterPhase(phase="evaluating")]


def test_a_job_that_trains_is_ready_though_a_replica_still_loads() -> None:
    trainer, first, second = LOADED
    assert DriverProbe().send(trainer, first, step(1), step(2), second) == [
        AnnounceReady(num_replicas=1, num_parameters=9),
        EnterPhase(phase="training"),
    ]


def test_readiness_does_not_wait_for_a_replica_that_has_left() -> None:
    trainer, first, _ = LOADED
    effects = DriverProbe().send(trainer, first, ResizeReported(replicas=1))
    assert effects == [AnnounceReady(num_replicas=1, num_parameters=9), EnterPhase(phase="training")]


def test_run_that_starts_at_its_end_is_ready_before_finalizing() -> None:
    driver = DriverProbe()
    assert driver.send(EvaluationStarted(version=PLAN.steps)) == []
    assert driver.send(*LOADED) == [READY, EnterPhase(phase="finalizing")]


def test_run_answered_at_its_end_is_ready_though_a_replica_loads() -> None:
    trainer, first, _ = LOADED
    last = WeightsId(0, PLAN.steps)
    evaluated = EvaluationReported(weights=last, num_prompts=1, reward_mean=0, reward_std=0, length_mean=1)
    effects = DriverProbe().send(trainer, first, EvaluationStarted(version=PLAN.steps), evaluated)
    assert effects == [AnnounceReady(num_replicas=1, num_parameters=9), EnterPhase(phase="finalizing")]


# ── requests ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_pause_is_repeated_until_done_and_then_acknowledged() -> None:
    driver = DriverProbe()
    driver.send(*LOADED)
    to_both = [Send(to=part, message=PauseRequested()) for part in (TRAINER, DATA)]
    assert driver.send(PauseAsked(request_id="p")) == to_both
    assert driver.send(PauseAsked(request_id="p")) == []
    assert driver.wait(4) == to_both * 2
    driver.send(PauseAsked(request_id="q"))
    assert driver.send(TrainerPaused(step=3, checkpointed=3)) == [
        Acknowledge(request_id="p"),
        Acknowledge(request_id="q"),
        EndRun(outcome="paused", message="Paused after step 3."),
    ]


def test_run_pauses_and_saves_before_its_deadline() -> None:
    driver = DriverProbe(runtime_left_s=100.0)
    to_both = [Send(to=part, message=PauseRequested()) for part in (TRAINER, DATA)]
    driver.send(*LOADED)
    driver.wait(30)
    driver.send(StepReported(step=1, metrics={"trainer/step_s": 20.0}, to_read=()))
    driver.wait(4)
    written = CheckpointReported(step=1, uri="file:///1", manifest_sha256="a" * 64, num_bytes=1)
    driver.send(written)
    assert sends(driver.wait(29)) == [], "1.5 times 20 s for a step and 4 s for its checkpoint are 36 s"
    assert sends(driver.wait(3)) == [*to_both, *to_both]
    [end] = driver.send(TrainerPaused(step=3, checkpointed=3))
    assert isinstance(end, EndRun) and (end.outcome, end.failure_class) == ("failed", "timeout")
    assert end.message.startswith("max_runtime_s leaves no time for another step: the run ended after step 3.")
    assert end.message.endswith("A checkpoint of step 3 is saved.")


def test_reserve_is_at_most_half_of_the_time() -> None:
    driver = DriverProbe(runtime_left_s=10.0)
    driver.send(*LOADED, StepReported(step=1, metrics={"trainer/step_s": 60.0}, to_read=()))
    assert sends(driver.wait(4)) == [] and sends(driver.wait(1)) != []


def test_without_a_step_there_is_nothing_to_save() -> None:
    driver = DriverProbe(runtime_left_s=10.0)
    driver.send(*LOADED)
    assert sends(driver.wait(10)) == []


def test_pause_asked_near_the_deadline_is_a_pause() -> None:
    driver = DriverProbe(runtime_left_s=10.0)
    driver.send(*LOADED, StepReported(step=1, metrics={"trainer/step_s": 1.0}, to_read=()))
    driver.wait(5)
    driver.send(PauseAsked(request_id="p"))
    assert driver.send(TrainerPaused(step=1, checkpointed=1))[-1] == EndRun(
        outcome="paused", message="Paused after step 1."
    )


def test_unrequested_pause_of_the_trainer_ends_nothing() -> None:
    assert DriverProbe().send(TrainerPaused(step=3, checkpointed=3)) == []


def ordered(effects: list[Effect]) -> list[tuple[int, int]]:
    return [(order.replicas, order.order) for order in of(effects, ResizeOrdered)]


def test_resize_is_repeated_until_the_manager_has_done_it() -> None:
    driver = DriverProbe()
    driver.send(*LOADED)
    assert ordered(driver.send(ResizeAsked(request_id="r", replicas=1))) == [(1, 1)]
    assert ordered(driver.wait(4)) == [(1, 1)] * 2
    done = ResizeReported(replicas=1, order=1)
    assert driver.send(done) == [AnnounceSize(replicas=1), Acknowledge(request_id="r")]
    assert driver.send(done, ResizeAsked(request_id="r", replicas=1)) == driver.wait(4) == []


def test_overtaken_resize_is_acknowledged_but_its_report_ignored() -> None:
    driver = DriverProbe()
    driver.send(*LOADED, ResizeAsked(request_id="one", replicas=1))
    assert driver.send(ResizeAsked(request_id="two", replicas=2))[0] == Acknowledge(request_id="one")
    assert driver.send(ResizeAsked(request_id="three", replicas=1))[0] == Acknowledge(request_id="two")
    assert driver.send(ResizeReported(replicas=1, order=1)) == []
    effects = driver.send(ResizeReported(replicas=1, order=3))
    assert effects == [AnnounceSize(replicas=1), Acknowledge(request_id="three")]


def test_more_replicas_than_the_job_may_have_are_not_ordered() -> None:
    assert ordered(DriverProbe().send(ResizeAsked(request_id="r", replicas=99))) == [(4, 1)]


# ── the environment's worker ──────────────────────────────────────────────────────────────────────────────────────────


def test_lost_environment_is_replaced_and_late_reports_ignored() -> None:
    driver = DriverProbe()
    lost = PartLost(part=ENVIRONMENT, incarnation=0, reason="killed")
    effects = driver.send(lost)
    assert [effect for effect in effects if not isinstance(effect, Send)] == [
        EndPart(part=ENVIRONMENT, incarnation=0),
        StartPart(part=ENVIRONMENT, incarnation=1),
    ]
    [fault] = of(effects, FaultReported)
    assert (fault.component, fault.message) == ("environment", "killed")
    assert driver.send(lost, PartReported(part=ENVIRONMENT, incarnation=0)) == []
    assert driver.wait(PATIENCE.start_s - 10, incarnation=0) == [], "it may still be starting"


def test_only_the_lost_one_of_several_environments_is_replaced() -> None:
    driver = DriverProbe(num_environments=3)
    gone = environment_address(2)
    effects = driver.send(PartLost(part=gone, incarnation=0, reason="killed"))
    assert [effect.part for effect in effects if isinstance(effect, EndPart | StartPart)] == [gone, gone]
    driver.wait(1)  # only the first sends heartbeats
    assert driver.wait(PATIENCE.silent_s, alive=False) == []
    silent = driver.wait(1, alive=False)
    assert [effect.part for effect in silent if isinstance(effect, EndPart)] == [ENVIRONMENT], "others may be starting"


def test_silent_environment_is_replaced_and_a_live_one_is_not() -> None:
    driver = DriverProbe()
    assert driver.wait(30) == []
    assert driver.wait(PATIENCE.silent_s, alive=False) == []
    assert EndPart(part=ENVIRONMENT, incarnation=0) in driver.wait(1, alive=False)


def test_absence_of_the_driver_blames_no_environment_and_no_run() -> None:
    driver = DriverProbe()
    driver.send(*LOADED)
    driver.wait(1)
    driver.now += LIMIT_S + PATIENCE.silent_s
    assert driver.send(Tick()) == []
    assert driver.wait(PATIENCE.silent_s, alive=False) == []
    assert EndPart(part=ENVIRONMENT, incarnation=0) in driver.wait(1, alive=False), "its own silence counts as before"


def test_often_absent_driver_still_detects_a_stalled_run() -> None:
    driver = DriverProbe()
    driver.send(*LOADED)
    effects: list[Effect] = []
    for _ in range(int(LIMIT_S) + 1):
        driver.now += 10.0
        effects += driver.wait(2)
    assert ends(effects)


def test_environment_backs_off_and_then_fails_the_run() -> None:
    driver = DriverProbe()
    waited: list[float] = []
    for incarnation in range(MAX_LOSSES):
        lost_at = driver.now
        effects = driver.send(PartLost(part=ENVIRONMENT, incarnation=incarnation, reason="no memory"))
        while StartPart(part=ENVIRONMENT, incarnation=incarnation + 1) not in effects:
            effects = driver.wait(1, alive=False)
        waited.append(driver.now - lost_at)
    assert waited == [0.0, 2.0, 4.0, 8.0, 16.0]
    effects = driver.send(PartLost(part=ENVIRONMENT, incarnation=MAX_LOSSES, reason="no memory"))
    [end] = ends(effects)
    assert (end.outcome, end.failure_class) == ("failed", "user_code") and "no memory" in end.message


# ── stillness ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_stalled_run_fails() -> None:
    driver = DriverProbe()
    driver.send(*LOADED)
    assert driver.wait(LIMIT_S) == []
    [end] = driver.wait(1)
    assert isinstance(end, EndRun) and (end.outcome, end.failure_class) == ("failed", "platform")
    assert "no progress for 50 s" in end.message


def test_tokens_count_as_progress_and_observations_do_not() -> None:
    driver = DriverProbe()
    driver.send(*LOADED, observed(5))
    assert driver.wait(LIMIT_S - 1) == driver.send(observed(6)) == []
    assert driver.wait(LIMIT_S) == driver.send(observed(6)) == []
    assert ends(driver.wait(1))


def test_run_waits_for_slow_tools_until_data_gives_samples_up() -> None:
    driver = DriverProbe()
    driver.send(*LOADED, observed(5, num_with_environment=3))
    assert driver.wait(LIMIT_S + 2 * PLAN.sample_deadline_s) == []
    driver.send(observed(5))
    assert ends(driver.wait(1)), "no sample is open any more, and there was no progress"


def test_open_samples_of_an_ended_replica_are_not_awaited() -> None:
    driver = DriverProbe()
    waiting = observed(5, num_with_environment=3)
    driver.send(*LOADED, waiting, PartEnded(part=rollout_address(0), incarnation=0), waiting)
    assert driver.wait(LIMIT_S) == []
    assert ends(driver.wait(1))


def test_loading_may_take_longer() -> None:
    driver = DriverProbe()
    assert driver.wait(PATIENCE.start_s) == []
    assert ends(driver.wait(1))


STILL_S = PATIENCE.no_progress_s
"""Limit in a piece of work."""


def at(serial: int, *, incarnation: int = 0, what: str = "micro-batch", constant_s: float = 0.0) -> PartReported:
    piece = Piece(what=what, serial=serial, constant_s=constant_s)
    return PartReported(part=TRAINER, incarnation=incarnation, piece=piece)


def test_signs_of_life_in_a_step_are_progress_and_idle_turns_not() -> None:
    driver = DriverProbe()
    limit_s = LIMIT_S + STILL_S
    driver.send(at(1), *LOADED)
    assert driver.wait(limit_s - 1) == driver.send(at(2)) == []
    assert driver.wait(limit_s - 1) == driver.send(at(2), at(3, what=LOOP)) == []
    assert ends(driver.wait(1))


def beside(serial: int, *, constant_s: float = 0.0) -> PartReported:
    writing = Piece(what="write", serial=serial, constant_s=constant_s)
    return PartReported(part=TRAINER, incarnation=0, piece=Piece(serial=serial), worker_pieces=(writing,))


def test_work_of_another_thread_is_progress_and_may_await_a_disk() -> None:
    driver = DriverProbe()
    limit_s = LIMIT_S + STILL_S
    driver.send(beside(1), *LOADED)
    assert driver.wait(limit_s) == driver.send(beside(2)) == []
    assert driver.wait(limit_s) == driver.send(beside(3, constant_s=100.0)) == []
    assert driver.wait(limit_s + 100.0) == []
    assert ends(driver.wait(1))


def test_replaced_trainer_extends_no_stall_limit() -> None:
    driver = DriverProbe()
    driver.send(*LOADED, at(1, constant_s=1_000.0), PartStarted(part=TRAINER, incarnation=1))
    driver.wait(LIMIT_S)
    assert ends(driver.wait(1))


def test_ended_part_and_its_late_report_extend_no_stall_limit() -> None:
    driver = DriverProbe()
    driver.send(*LOADED, at(1, constant_s=1_000.0), PartEnded(part=TRAINER, incarnation=0), at(2, constant_s=1_000.0))
    assert driver.wait(LIMIT_S) == []
    assert ends(driver.wait(1))


def test_run_waits_for_a_long_checkpoint_load_of_a_successor() -> None:
    driver = DriverProbe()
    driver.send(*LOADED, PartStarted(part=TRAINER, incarnation=1))
    for megabyte in range(5):
        assert driver.wait(LIMIT_S) == []
        assert driver.send(at(megabyte, incarnation=1, what="checkpoint")) == []


def test_trainer_that_keeps_dying_does_not_keep_the_run_alive() -> None:
    driver = DriverProbe()
    driver.send(at(1), *LOADED)
    effects: list[Effect] = []
    for incarnation in range(1, 60):
        effects += driver.send(PartStarted(part=TRAINER, incarnation=incarnation), at(1, incarnation=incarnation))
        effects += driver.wait(LIMIT_S / 8)
        effects += driver.send(at(2, incarnation=incarnation))
    assert ends(effects), "its signs of life count once it was ready"


def test_replacements_are_no_progress() -> None:
    driver = DriverProbe()
    driver.send(*LOADED)
    driver.wait(LIMIT_S - 1)
    driver.send(FaultReported(component="environment", message="silent", action="replaced"))
    assert ends(driver.wait(2)), "a fault is no progress"


# ── the end ───────────────────────────────────────────────────────────────────────────────────────────────────────────

FINISHED = (PartFinished(part="trainer"), PartFinished(part="data"))


@pytest.mark.parametrize("finished", [FINISHED, FINISHED[::-1]])
def test_run_succeeds_when_trainer_and_data_have_finished(finished: tuple[Message, ...]) -> None:
    driver = DriverProbe()
    assert ends(driver.send(*LOADED, step(1), finished[0])) == []
    assert driver.send(finished[1]) == [EndRun(outcome="succeeded")]


def test_a_trainer_that_is_being_started_has_yet_to_finish() -> None:
    driver = DriverProbe()
    assert driver.send(FINISHED[0], PartStarted(part=TRAINER, incarnation=1), FINISHED[1]) == []


def test_nothing_is_decided_after_the_end() -> None:
    driver = DriverProbe()
    driver.send(*LOADED, PauseAsked(request_id="p"))
    broken = RunBroken(failure_class="reward", message="no verdict")
    assert driver.send(broken) == [EndRun(outcome="failed", failure_class="reward", message="no verdict")]
    assert driver.send(broken, *FINISHED, TrainerPaused(step=1, checkpointed=1)) == driver.wait(100) == []


def test_message_for_another_part_is_rejected() -> None:
    with pytest.raises(TypeError, match="BatchWanted"):
        DriverProbe().send(BatchWanted(step=1))
