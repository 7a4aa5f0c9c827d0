"""How long a piece of work may take: by its size, and then by its own pace."""

from engine.policy.pace import LOOP, Pace, Piece, Pulse
from engine.policy.recovery import SLOWER_THAN_USUAL, Patience
from engine.spec.fit.durations.slowest import estimate_s

PATIENCE = Patience(silent_s=20.0, nothing_moves_s=600.0)


def test_an_estimate_grows_with_the_work_and_is_of_the_device_that_does_it() -> None:
    assert estimate_s(num_bytes=2e9) == 2 * estimate_s(num_bytes=1e9) > 0
    assert (
        estimate_s(num_flops=1e12, device="cuda:1")
        < estimate_s(num_flops=1e12)
        == estimate_s(num_flops=1e12, device="unheard-of")
    )


def test_every_turn_every_begin_and_every_end_is_a_sign_of_life() -> None:
    pulse = Pulse(0.0)
    serials = [pulse.piece.serial]
    pulse.sign(1.0)
    serials.append(pulse.piece.serial)
    pulse.begin("step", 9.0, 2.0)
    serials.append(pulse.piece.serial)
    pulse.end(3.0)
    serials.append(pulse.piece.serial)
    assert serials == [0, 1, 2, 3]
    assert pulse.piece.what == LOOP


def test_a_smaller_piece_interrupts_a_larger_one_which_goes_on_afterwards() -> None:
    pulse = Pulse(0.0)
    pulse.begin("step", 100.0, 0.0)
    pulse.begin("micro-batch", 10.0, 1.0)
    assert (pulse.piece.what, pulse.piece.expects_s) == ("micro-batch", 10.0)
    pulse.end(3.0)
    assert (pulse.piece.what, pulse.piece.expects_s) == ("step", 100.0)


def test_a_pace_is_of_its_own_kind_and_leaves_out_what_was_inside() -> None:
    pulse = Pulse(0.0)
    pulse.begin("step", 100.0, 0.0)
    for at in (1.0, 4.0):
        pulse.begin("micro-batch", 10.0, at)
        pulse.sign(at + 1.0)
        pulse.end(at + 2.0)
    pulse.end(8.0)
    pulse.begin("micro-batch", 10.0, 9.0)
    assert pulse.piece.pace == Pace(spent_s=4.0, expected_s=20.0)
    pulse.end(9.0)
    pulse.begin("step", 100.0, 9.0)
    assert pulse.piece.pace == Pace(spent_s=4.0, expected_s=100.0)


def test_a_turn_of_the_loop_may_take_as_long_as_a_heartbeat_may_be_late() -> None:
    assert PATIENCE.standstill_s(Piece()) == 20.0


def test_before_it_was_measured_work_is_given_its_whole_estimate() -> None:
    barely = Pace(spent_s=19.0, expected_s=1_000.0)
    assert PATIENCE.standstill_s(Piece(expects_s=5_000.0, pace=barely)) == 5_020.0


def test_measured_work_is_given_ten_times_its_own_pace_and_more_if_there_is_more_of_it() -> None:
    pace = Pace(spent_s=100.0, expected_s=10_000.0)
    usual = PATIENCE.standstill_s(Piece(expects_s=1_000.0, pace=pace))
    assert usual == 20.0 + SLOWER_THAN_USUAL * 10.0
    assert PATIENCE.standstill_s(Piece(expects_s=6_000.0, pace=pace)) == 20.0 + SLOWER_THAN_USUAL * 60.0


def test_no_pace_shortens_what_no_job_makes_longer() -> None:
    assert PATIENCE.standstill_s(Piece(constant_s=300.0, pace=Pace(spent_s=100.0, expected_s=1e6))) == 320.0


def test_a_run_is_still_only_after_the_longest_work_in_it_would_have_been_found_to_stand_still() -> None:
    work = Piece(what="load", expects_s=7_000.0)
    assert PATIENCE.of_the_run_s([]) == PATIENCE.of_the_run_s([Piece()]) == 600.0
    assert PATIENCE.of_the_run_s([Piece(), work]) == 600.0 + PATIENCE.standstill_s(work) == 7_620.0
