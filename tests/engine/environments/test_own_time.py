"""Untrusted code is ended by its own time, computed or slept, and never by waits for a core."""

import threading

import pytest

from engine.environments.sandbox.excuses import Excuse, excuse_wait, excused, excusing
from engine.environments.sandbox.host_speed import HIGHEST, HostSpeed
from engine.environments.sandbox.own_time import LEAST_PATIENCE_S, Ending, OwnTime, TreeWaits, patience_s
from engine.environments.sandbox.process_times import TreeTimes, times_of
from engine.environments.sandbox.watch import NEW_BORN
from engine.process.thread_times import ThreadTimes, own_wait_ns

LOOK_S = 0.125


def thread(ran_s: float = 0.0, waited_s: float = 0.0, *, is_runnable: bool = True) -> ThreadTimes:
    state = "R" if is_runnable else "S"
    return ThreadTimes(state=state, ran_ns=int(ran_s * 1e9), waited_ns=int(waited_s * 1e9), num_turns=0)


def tree(cpu_s: float, *threads: ThreadTimes) -> TreeTimes:
    return TreeTimes(cpu_s=cpu_s, threads=dict(enumerate(threads)))


def spent(own: OwnTime, looks: list[TreeTimes]) -> Ending | None:
    waits = TreeWaits(NEW_BORN)
    for each in looks:
        cpu_s, waited_s = waits.since(LOOK_S, each)
        own.add(LOOK_S, waited_s=waited_s, cpu_s=cpu_s)
        if own.ending:
            break
    return own.ending


def test_starved_code_is_ended_by_its_processor_time() -> None:
    tenth = [tree(n * LOOK_S / 8, thread(n * LOOK_S / 8, n * LOOK_S * 7 / 8)) for n in range(1, 1_000)]
    own = OwnTime(limit_s=20.0, cpu_limit_s=10.0)
    assert spent(own, tenth) == "cpu"
    assert own.own_s == pytest.approx(10.0)
    assert own.waited_s == pytest.approx(70.0)


def test_starved_code_within_its_limit_continues() -> None:
    eighth = [tree(n * LOOK_S / 8, thread(n * LOOK_S / 8, n * LOOK_S * 7 / 8)) for n in range(1, 600)]
    assert spent(OwnTime(limit_s=10.0, cpu_limit_s=10.0), eighth) is None


def test_sleeping_code_is_ended_by_its_own_time() -> None:
    own = OwnTime(limit_s=10.0, cpu_limit_s=10.0)
    assert spent(own, [tree(0.01, thread(0.01, is_runnable=False))] * 1_000) == "wall"
    assert own.waited_s == 0


def test_stopped_code_is_ended_as_if_it_slept() -> None:
    ran = tree(0.5, thread(0.5))
    stopped = tree(0.5, thread(0.5, is_runnable=False))
    assert spent(OwnTime(limit_s=10.0), [ran, *[stopped] * 100]) == "wall"


def test_wait_in_progress_counts_before_the_kernel_counts_it() -> None:
    own = OwnTime(limit_s=1.0)
    waiting = [tree(0.0, thread())] * 80
    assert spent(own, [tree(0.0, thread(is_runnable=False)), *waiting]) is None
    assert own.waited_s == pytest.approx(80 * LOOK_S, abs=LOOK_S)


def test_wait_that_ends_is_counted_once() -> None:
    own = OwnTime(limit_s=1e6)
    began = tree(0.0, thread())
    arrived = tree(LOOK_S, thread(LOOK_S, 4 * LOOK_S))
    later = tree(2 * LOOK_S, thread(2 * LOOK_S, 4 * LOOK_S))
    spent(own, [began, began, began, began, began, arrived, later])
    assert own.waited_s == pytest.approx(4 * LOOK_S, abs=LOOK_S)


@pytest.mark.parametrize("wait_s", [0.05, 0.13, 0.2, 0.31, 1.0])
def test_waits_across_looks_add_no_own_time(wait_s: float) -> None:
    """Each wait begins in one interval and is reported by the kernel in another."""
    run_s = 0.005
    looks = []
    for n in range(1, 2_000):
        rounds, rest_s = divmod(n * LOOK_S, run_s + wait_s)
        ran_s = rounds * run_s + min(rest_s, run_s)
        waited_s = rounds * wait_s if rest_s else (rounds - 1) * wait_s
        looks.append(tree(ran_s, thread(ran_s, waited_s)))
    own = OwnTime(limit_s=1e6)
    spent(own, looks)
    assert own.own_s == pytest.approx(own.cpu_s, abs=2 * LOOK_S)


def test_sleep_before_a_wait_stays_own_time() -> None:
    slept, waited = 6 * LOOK_S, 2 * LOOK_S
    asleep = [tree(0.0, thread(0.0, 0.0, is_runnable=False))] * 6
    waiting = [tree(0.0, thread())] * 3
    own = OwnTime(limit_s=1e6)
    spent(own, [*asleep, *waiting, tree(0.001, thread(0.001, waited, is_runnable=False))])
    assert own.own_s >= slept and own.waited_s <= waited + LOOK_S


def test_waits_behind_its_own_threads_are_own_time() -> None:
    """Eight threads on two cores: each waits three quarters of the time, and the tree uses both cores."""
    crowd = [tree(2 * n * LOOK_S, *[thread(n * LOOK_S / 4, n * LOOK_S * 3 / 4)] * 8) for n in range(1, 1_000)]
    own = OwnTime(limit_s=10.0)
    assert spent(own, crowd) == "wall"
    assert own.waited_s == 0


def test_code_without_a_core_is_starved() -> None:
    own = OwnTime(limit_s=10.0)
    assert spent(own, [tree(0.0, thread())] * 10_000) == "starved"
    assert own.waited_s == pytest.approx(LEAST_PATIENCE_S, abs=1)


@pytest.mark.parametrize(("limit_s", "patience"), [(0.1, 600), (10, 600), (60, 1_800), (86_400, 3_600)])
def test_patience_grows_with_the_limit_within_bounds(limit_s: float, patience: float) -> None:
    assert patience_s(limit_s) == patience


def test_short_calls_count_a_tenth_and_still_add_up() -> None:
    own = OwnTime(limit_s=1.0)
    for _ in range(101):
        own.add_glance(0.1)
    assert own.ending == "wall"


def test_processes_may_begin_and_end_between_looks() -> None:
    own = OwnTime(limit_s=1.0)
    looks = [tree(0.1, thread(0.1), thread(0.0, 0.05)), tree(0.05, thread(0.1)), TreeTimes(), tree(0.2, thread(0.2, 9))]
    assert spent(own, looks) is None
    assert 0 <= own.waited_s <= 4 * LOOK_S


def test_wait_of_a_thread_missed_by_a_look_counts_once() -> None:
    own = OwnTime(limit_s=1e6)
    seen = tree(0.0, thread(0.0, LOOK_S, is_runnable=False))
    spent(own, [seen, TreeTimes(), seen, TreeTimes(), seen])
    assert own.waited_s == pytest.approx(LOOK_S)


def test_first_look_at_a_warm_tree_counts_nothing() -> None:
    waits = TreeWaits(None)
    assert waits.since(1.0, tree(50.0, thread(40.0, 30.0))) == (0.0, 0.0)
    assert waits.since(1.0, tree(50.25, thread(40.25, 30.75))) == (0.25, 0.75)


# ── times from the kernel ─────────────────────────────────────────────────────────────────────────────────────────────


def test_times_of_a_missing_process_are_left_out() -> None:
    me = threading.get_native_id()
    times = times_of([me, 2**22 + 1])
    assert times.cpu_s > 0 and times.threads[me].is_runnable and times.threads[me].ran_ns > 0
    assert own_wait_ns() >= times.threads[me].waited_ns
    assert times_of([2**22 + 1]) == TreeTimes()


# ── the speed of the host ─────────────────────────────────────────────────────────────────────────────────────────────


def speed_of(cpu_s_of_a_measurement: float, at: list[float]) -> HostSpeed:
    cpu = [0.0]

    def cpu_clock() -> float:
        cpu[0] += cpu_s_of_a_measurement
        return cpu[0]

    return HostSpeed(clock=lambda: at[0], cpu_clock=cpu_clock)


@pytest.mark.parametrize(("cpu_s", "scale"), [(0.01, 1.0), (0.005, 1.0), (0.03, 3.0), (5.0, HIGHEST)])
def test_limits_grow_on_slower_cores_and_never_shrink(cpu_s: float, scale: float) -> None:
    assert speed_of(cpu_s, [0.0]).scale() == pytest.approx(scale)


def test_speed_is_measured_again_after_a_minute() -> None:
    at, cpu = [0.0], [0.0, 0.01, 1.0, 1.03]
    speed = HostSpeed(clock=lambda: at[0], cpu_clock=lambda: cpu.pop(0))
    assert [speed.scale(), speed.scale()] == [pytest.approx(1.0)] * 2
    at[0] = 61.0
    assert speed.scale() == pytest.approx(3.0)


# ── excuses ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_waits_within_an_excused_span_count_once() -> None:
    excuse = Excuse()
    with excusing(excuse):
        excuse_wait(2.0)
        with excused(), excused():
            excuse_wait(100.0)
        excuse_wait(1.0)
    excuse_wait(50.0)
    assert 3.0 <= excuse.seconds() < 50.0


def test_excuse_in_progress_is_seen_by_other_threads() -> None:
    excuse, seen = Excuse(), []
    with excusing(excuse), excused():
        while excuse.seconds() < 0.01:
            pass
        other = threading.Thread(target=lambda: seen.append(excuse.seconds()))
        other.start()
        other.join()
    assert seen[0] >= 0.01
