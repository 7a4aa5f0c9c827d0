"""A loop's piece of work, its progress of life, and the limit between two of them."""

from engine.policy.progress import LOOP, SLOWEST_OPAQUE_S, SLOWEST_SYNC_S, Piece, Pulse
from engine.policy.recovery import Patience

PATIENCE = Patience(silent_s=20.0, nothing_moves_s=600.0)


def test_every_turn_every_begin_and_every_end_is_a_sign_of_life() -> None:
    pulse = Pulse()
    serials = [pulse.piece.serial]
    pulse.advance()
    serials.append(pulse.piece.serial)
    pulse.begin("step")
    serials.append(pulse.piece.serial)
    pulse.end()
    serials.append(pulse.piece.serial)
    assert serials == [0, 1, 2, 3]
    assert pulse.piece.what == LOOP


def test_nested_piece_interrupts_the_outer_one_which_resumes() -> None:
    pulse = Pulse()
    pulse.begin("start", is_opaque=True)
    pulse.begin("load", constant_s=10.0)
    assert (pulse.piece.what, pulse.piece.constant_s, pulse.is_opaque) == ("load", 10.0, False)
    pulse.end()
    assert (pulse.piece.what, pulse.piece.constant_s, pulse.is_opaque) == ("start", SLOWEST_OPAQUE_S, True)


def test_idle_loop_has_the_limit_of_a_heartbeat() -> None:
    assert PATIENCE.standstill_s(Piece()) == 20.0


def test_unit_of_any_work_has_two_minutes() -> None:
    assert Patience().standstill_s(Piece(what="load")) == Patience().standstill_s(Piece(what="step")) == 120.0


def test_wait_for_a_disk_adds_its_constant() -> None:
    assert PATIENCE.standstill_s(Piece(what="sync", constant_s=SLOWEST_SYNC_S)) == 120.0 + SLOWEST_SYNC_S


def test_call_into_other_peoples_code_has_ten_minutes() -> None:
    pulse = Pulse()
    pulse.begin("start", is_opaque=True)
    assert Patience().standstill_s(pulse.piece) == 600.0
    pulse.begin("load")
    assert Patience().standstill_s(pulse.piece) == 120.0


def test_run_stall_limit_exceeds_limit_of_its_parts() -> None:
    assert PATIENCE.stall_limit_s([]) == PATIENCE.stall_limit_s([Piece()]) == 600.0
    assert PATIENCE.stall_limit_s([Piece(), Piece(what="load")]) == 720.0
