"""The driver decides what a run is from outside: ready, in a phase, paused, resized, at its one end."""

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


class Told:
    """A driver that is told one thing after the other."""

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

    def tell(self, *messages: Message) -> list[Effect]:
        return [effect for message in messages for effect in self.brain.handle(message, self.now)]

    def wait(self, seconds: float, *, alive: bool = True, incarnation: int = 0) -> list[Effect]:
        """Ticks every second; the environment answers, or does not."""
        effects: list[Effect] = []
        for _ in range(int(seconds)):
            self.now += 1.0
            if alive:
                effects += self.tell(PartReported(part=ENVIRONMENT, incarnation=incarnation))
            effects += self.tell(Tick())
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


def test_it_is_ready_once_the_trainer_and_every_replica_of_the_start_hold_weights() -> None:
    driver = Told()
    trainer, first, second = LOADED
    assert driver.tell(trainer, first, replace(first, incarnation=1)) == []
    assert driver.tell(second) == [READY, EnterPhase(phase="training")]
    assert driver.tell(*LOADED) == []


def test_phases_follow_a_job_and_never_go_back() -> None:
    driver = Told()
    evaluated = EvaluationReported(weights=WeightsId(0, 0), num_prompts=1, reward_mean=0, reward_std=0, length_mean=1)
    assert phases(driver.tell(*LOADED)) == ["training"], "the first evaluation runs beside it"
    assert phases(driver.tell(step(1), evaluated, step(2), EvaluationStarted(version=2), step(2))) == ["finalizing"]


def test_a_job_that_trains_is_ready_though_a_replica_still_loads() -> None:
    trainer, first, second = LOADED
    assert Told().tell(trainer, first, step(1), step(2), second) == [
        AnnounceReady(num_replicas=1, num_parameters=9),
        EnterPhase(phase="training"),
    ]


def test_nobody_waits_for_a_replica_that_has_left_before_it_was_ready() -> None:
    trainer, first, _ = LOADED
    told = Told().tell(trainer, first, ResizeReported(replicas=1))
    assert told == [AnnounceReady(num_replicas=1, num_parameters=9), EnterPhase(phase="training")]


def test_a_run_that_begins_at_its_end_is_ready_before_it_finalizes() -> None:
    driver = Told()
    assert driver.tell(EvaluationStarted(version=PLAN.steps)) == []
    assert driver.tell(*LOADED) == [READY, EnterPhase(phase="finalizing")]


# ── requests ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_pause_is_said_again_until_it_has_come_true_and_acknowledged_then() -> None:
    driver = Told()
    driver.tell(*LOADED)
    to_both = [Send(to=part, message=PauseRequested()) for part in (TRAINER, DATA)]
    assert driver.tell(PauseAsked(request_id="p")) == to_both
    assert driver.tell(PauseAsked(request_id="p")) == []
    assert driver.wait(4) == to_both * 2
    driver.tell(PauseAsked(request_id="q"))
    assert driver.tell(TrainerPaused(step=3, checkpointed=3)) == [
        Acknowledge(request_id="p"),
        Acknowledge(request_id="q"),
        EndRun(outcome="paused", message="Paused after step 3."),
    ]


def test_run_saves_what_it_trained_before_its_time_is_over() -> None:
    driver = Told(runtime_left_s=100.0)
    to_both = [Send(to=part, message=PauseRequested()) for part in (TRAINER, DATA)]
    driver.tell(*LOADED)
    driver.wait(30)
    driver.tell(StepReported(step=1, metrics={"trainer/step_s": 20.0}, to_read=()))
    driver.wait(4)
    written = CheckpointReported(step=1, uri="file:///1", manifest_sha256="a" * 64, num_bytes=1)
    driver.tell(written)
    assert sends(driver.wait(29)) == [], "1.5 times 20 s for a step and 4 s for its checkpoint are 36 s"
    assert sends(driver.wait(3)) == [*to_both, *to_both]
    [end] = driver.tell(TrainerPaused(step=3, checkpointed=3))
    assert isinstance(end, EndRun) and (end.outcome, end.failure_class) == ("failed", "timeout")
    assert end.message == "Its max_runtime_s is used up after step 3. A checkpoint of step 3 is saved."


def test_reserve_is_at_most_half_of_the_time() -> None:
    driver = Told(runtime_left_s=10.0)
    driver.tell(*LOADED, StepReported(step=1, metrics={"trainer/step_s": 60.0}, to_read=()))
    assert sends(driver.wait(4)) == [] and sends(driver.wait(1)) != []


def test_without_a_step_there_is_nothing_to_save() -> None:
    driver = Told(runtime_left_s=10.0)
    driver.tell(*LOADED)
    assert sends(driver.wait(10)) == []


def test_pause_asked_near_the_deadline_is_a_pause() -> None:
    driver = Told(runtime_left_s=10.0)
    driver.tell(*LOADED, StepReported(step=1, metrics={"trainer/step_s": 1.0}, to_read=()))
    driver.wait(5)
    driver.tell(PauseAsked(request_id="p"))
    assert driver.tell(TrainerPaused(step=1, checkpointed=1))[-1] == EndRun(
        outcome="paused", message="Paused after step 1."
    )


def test_a_trainer_that_pauses_and_was_not_asked_to_ends_nothing() -> None:
    assert Told().tell(TrainerPaused(step=3, checkpointed=3)) == []


def ordered(effects: list[Effect]) -> list[tuple[int, int]]:
    return [(order.replicas, order.order) for order in of(effects, ResizeOrdered)]


def test_a_resize_is_ordered_again_until_the_manager_has_carried_it_out() -> None:
    driver = Told()
    driver.tell(*LOADED)
    assert ordered(driver.tell(ResizeAsked(request_id="r", replicas=1))) == [(1, 1)]
    assert ordered(driver.wait(4)) == [(1, 1)] * 2
    done = ResizeReported(replicas=1, order=1)
    assert driver.tell(done) == [AnnounceSize(replicas=1), Acknowledge(request_id="r")]
    assert driver.tell(done, ResizeAsked(request_id="r", replicas=1)) == driver.wait(4) == []


def test_a_resize_that_another_one_overtakes_is_acknowledged_and_its_late_report_is_not_taken_for_the_others() -> None:
    driver = Told()
    driver.tell(*LOADED, ResizeAsked(request_id="one", replicas=1))
    assert driver.tell(ResizeAsked(request_id="two", replicas=2))[0] == Acknowledge(request_id="one")
    assert driver.tell(ResizeAsked(request_id="three", replicas=1))[0] == Acknowledge(request_id="two")
    assert driver.tell(ResizeReported(replicas=1, order=1)) == []
    told = driver.tell(ResizeReported(replicas=1, order=3))
    assert told == [AnnounceSize(replicas=1), Acknowledge(request_id="three")]


def test_more_replicas_than_the_job_may_have_are_not_ordered() -> None:
    assert ordered(Told().tell(ResizeAsked(request_id="r", replicas=99))) == [(4, 1)]


# ── the environment's worker ──────────────────────────────────────────────────────────────────────────────────────────


def test_an_environment_that_is_gone_is_replaced_and_the_word_of_the_dead_does_not_count() -> None:
    driver = Told()
    lost = PartLost(part=ENVIRONMENT, incarnation=0, reason="killed")
    told = driver.tell(lost)
    assert [effect for effect in told if not isinstance(effect, Send)] == [
        EndPart(part=ENVIRONMENT, incarnation=0),
        StartPart(part=ENVIRONMENT, incarnation=1),
    ]
    [fault] = of(told, FaultReported)
    assert (fault.component, fault.message) == ("environment", "killed")
    assert driver.tell(lost, PartReported(part=ENVIRONMENT, incarnation=0)) == []
    assert driver.wait(PATIENCE.start_s - 10, incarnation=0) == [], "it may still be starting"


def test_of_several_environments_only_the_one_that_is_gone_is_replaced() -> None:
    driver = Told(num_environments=3)
    gone = environment_address(2)
    told = driver.tell(PartLost(part=gone, incarnation=0, reason="killed"))
    assert [effect.part for effect in told if isinstance(effect, EndPart | StartPart)] == [gone, gone]
    driver.wait(1)  # the first alone speaks
    assert driver.wait(PATIENCE.silent_s, alive=False) == []
    silent = driver.wait(1, alive=False)
    assert [effect.part for effect in silent if isinstance(effect, EndPart)] == [ENVIRONMENT], "others may be starting"


def test_an_environment_that_is_silent_is_replaced_and_one_that_answers_is_not() -> None:
    driver = Told()
    assert driver.wait(30) == []
    assert driver.wait(PATIENCE.silent_s, alive=False) == []
    assert EndPart(part=ENVIRONMENT, incarnation=0) in driver.wait(1, alive=False)


def test_an_environment_is_not_replaced_nor_a_run_ended_for_the_drivers_own_absence() -> None:
    driver = Told()
    driver.tell(*LOADED)
    driver.wait(1)
    driver.now += LIMIT_S + PATIENCE.silent_s
    assert driver.tell(Tick()) == []
    assert driver.wait(PATIENCE.silent_s, alive=False) == []
    assert EndPart(part=ENVIRONMENT, incarnation=0) in driver.wait(1, alive=False), "its own silence counts as before"


def test_a_driver_that_is_away_again_and_again_still_finds_a_run_that_stands_still() -> None:
    driver = Told()
    driver.tell(*LOADED)
    effects: list[Effect] = []
    for _ in range(int(LIMIT_S) + 1):
        driver.now += 10.0
        effects += driver.wait(2)
    assert ends(effects)


def test_an_environment_that_dies_too_often_is_replaced_later_and_later_and_then_ends_the_run() -> None:
    driver = Told()
    waited: list[float] = []
    for incarnation in range(MAX_LOSSES):
        lost_at = driver.now
        told = driver.tell(PartLost(part=ENVIRONMENT, incarnation=incarnation, reason="no memory"))
        while StartPart(part=ENVIRONMENT, incarnation=incarnation + 1) not in told:
            told = driver.wait(1, alive=False)
        waited.append(driver.now - lost_at)
    assert waited == [0.0, 2.0, 4.0, 8.0, 16.0]
    told = driver.tell(PartLost(part=ENVIRONMENT, incarnation=MAX_LOSSES, reason="no memory"))
    [end] = ends(told)
    assert (end.outcome, end.failure_class) == ("failed", "user_code") and "no memory" in end.message


# ── stillness ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_run_in_which_nothing_moves_is_ended() -> None:
    driver = Told()
    driver.tell(*LOADED)
    assert driver.wait(LIMIT_S) == []
    [end] = driver.wait(1)
    assert isinstance(end, EndRun) and (end.outcome, end.failure_class) == ("failed", "infrastructure")
    assert "nothing moved for 50 s" in end.message


def test_generated_tokens_move_a_run_and_an_observation_alone_does_not() -> None:
    driver = Told()
    driver.tell(*LOADED, observed(5))
    assert driver.wait(LIMIT_S - 1) == driver.tell(observed(6)) == []
    assert driver.wait(LIMIT_S) == driver.tell(observed(6)) == []
    assert ends(driver.wait(1))


def test_samples_that_all_wait_for_a_slow_tool_are_waited_for_until_data_has_given_them_up_twice() -> None:
    driver = Told()
    driver.tell(*LOADED, observed(5, num_with_environment=3))
    assert driver.wait(LIMIT_S + 2 * PLAN.sample_deadline_s) == []
    driver.tell(observed(5))
    assert ends(driver.wait(1)), "none is open any more, and nothing has moved"


def test_what_a_replica_had_open_that_is_no_more_is_waited_for_by_nobody() -> None:
    driver = Told()
    waiting = observed(5, num_with_environment=3)
    driver.tell(*LOADED, waiting, PartEnded(part=rollout_address(0), incarnation=0), waiting)
    assert driver.wait(LIMIT_S) == []
    assert ends(driver.wait(1))


def test_loading_may_take_longer() -> None:
    driver = Told()
    assert driver.wait(PATIENCE.start_s) == []
    assert ends(driver.wait(1))


STILL_S = PATIENCE.no_progress_s
"""In a piece of work."""


def at(serial: int, *, incarnation: int = 0, what: str = "micro-batch", constant_s: float = 0.0) -> PartReported:
    piece = Piece(what=what, serial=serial, constant_s=constant_s)
    return PartReported(part=TRAINER, incarnation=incarnation, piece=piece)


def test_signs_of_life_inside_a_long_step_move_a_run_and_a_loop_that_only_turns_does_not() -> None:
    driver = Told()
    limit_s = LIMIT_S + STILL_S
    driver.tell(at(1), *LOADED)
    assert driver.wait(limit_s - 1) == driver.tell(at(2)) == []
    assert driver.wait(limit_s - 1) == driver.tell(at(2), at(3, what=LOOP)) == []
    assert ends(driver.wait(1))


def beside(serial: int, *, constant_s: float = 0.0) -> PartReported:
    writing = Piece(what="write", serial=serial, constant_s=constant_s)
    return PartReported(part=TRAINER, incarnation=0, piece=Piece(serial=serial), beside=(writing,))


def test_work_beside_a_loop_moves_a_run_and_may_wait_for_a_disk() -> None:
    driver = Told()
    limit_s = LIMIT_S + STILL_S
    driver.tell(beside(1), *LOADED)
    assert driver.wait(limit_s) == driver.tell(beside(2)) == []
    assert driver.wait(limit_s) == driver.tell(beside(3, constant_s=100.0)) == []
    assert driver.wait(limit_s + 100.0) == []
    assert ends(driver.wait(1))


def test_replaced_trainer_extends_no_stall_limit() -> None:
    driver = Told()
    driver.tell(*LOADED, at(1, constant_s=1_000.0), PartStarted(part=TRAINER, incarnation=1))
    driver.wait(LIMIT_S)
    assert ends(driver.wait(1))


def test_ended_part_and_its_late_report_extend_no_stall_limit() -> None:
    driver = Told()
    driver.tell(*LOADED, at(1, constant_s=1_000.0), PartEnded(part=TRAINER, incarnation=0), at(2, constant_s=1_000.0))
    assert driver.wait(LIMIT_S) == []
    assert ends(driver.wait(1))


def test_a_successor_that_reads_a_large_checkpoint_for_longer_than_a_run_may_stand_still_is_waited_for() -> None:
    driver = Told()
    driver.tell(*LOADED, PartStarted(part=TRAINER, incarnation=1))
    for megabyte in range(5):
        assert driver.wait(LIMIT_S) == []
        assert driver.tell(at(megabyte, incarnation=1, what="checkpoint")) == []


def test_a_trainer_that_dies_at_work_again_and_again_keeps_no_run_alive() -> None:
    driver = Told()
    driver.tell(at(1), *LOADED)
    effects: list[Effect] = []
    for incarnation in range(1, 60):
        effects += driver.tell(PartStarted(part=TRAINER, incarnation=incarnation), at(1, incarnation=incarnation))
        effects += driver.wait(LIMIT_S / 8)
        effects += driver.tell(at(2, incarnation=incarnation))
    assert ends(effects), "its signs count once it was ready"


def test_what_is_replaced_again_and_again_keeps_no_run_alive() -> None:
    driver = Told()
    driver.tell(*LOADED)
    driver.wait(LIMIT_S - 1)
    driver.tell(FaultReported(component="environment", message="silent", action="replaced"))
    assert ends(driver.wait(2)), "a fault is no movement"


# ── the end ───────────────────────────────────────────────────────────────────────────────────────────────────────────

FINISHED = (PartFinished(part="trainer"), PartFinished(part="data"))


@pytest.mark.parametrize("finished", [FINISHED, FINISHED[::-1]])
def test_it_succeeds_when_trainer_and_data_have_finished(finished: tuple[Message, ...]) -> None:
    driver = Told()
    assert ends(driver.tell(*LOADED, step(1), finished[0])) == []
    assert driver.tell(finished[1]) == [EndRun(outcome="succeeded")]


def test_a_trainer_that_is_being_started_has_yet_to_finish() -> None:
    driver = Told()
    assert driver.tell(FINISHED[0], PartStarted(part=TRAINER, incarnation=1), FINISHED[1]) == []


def test_nothing_is_decided_after_the_end() -> None:
    driver = Told()
    driver.tell(*LOADED, PauseAsked(request_id="p"))
    broken = RunBroken(failure_class="reward", message="no verdict")
    assert driver.tell(broken) == [EndRun(outcome="failed", failure_class="reward", message="no verdict")]
    assert driver.tell(broken, *FINISHED, TrainerPaused(step=1, checkpointed=1)) == driver.wait(100) == []


def test_it_takes_no_message_that_is_for_another() -> None:
    with pytest.raises(TypeError, match="BatchWanted"):
        Told().tell(BatchWanted(step=1))
