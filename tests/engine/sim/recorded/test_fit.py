"""Constants from recordings: known constants are recovered, and undetermined ones are named."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from engine.__main__ import main
from engine.sim.chance import Chance
from engine.sim.costs.constants import AS_THEY_STAND, Book, Constant
from engine.sim.costs.decode import GEMM_SHARE, READ_SHARE, STEP_OVERHEAD, DecodeCost
from engine.sim.costs.devices import DEVICES
from engine.sim.costs.grading import GRADING_S, grading_s
from engine.sim.costs.handover import HANDOVER_RATE, handover_s
from engine.sim.costs.install import INSTALL_FIXED, install_s
from engine.sim.costs.prefill import PREFILL_SHARE, prefill_token_s
from engine.sim.costs.relay import HOP_S, broadcast_s
from engine.sim.costs.training import FORWARD_GAIN, HALF_TOKENS, MFU, training_cost
from engine.sim.recorded.facts import observed, read_facts
from engine.sim.recorded.fit import DeviceFit, Fitted, fit, model_of
from engine.sim.recorded.least_squares import Indistinct, fitted
from engine.sinks.jsonl import JsonlSink
from engine.spec.facts import FactBody, PipelineReady, ReplicasObserved, ReplicaState, StepTrained

CPU = DEVICES["CPU"]
PARAMETERS = 50_000_000
MODEL = model_of(PARAMETERS)
TRUTH = (
    AS_THEY_STAND.with_factor(STEP_OVERHEAD, 1.7)
    .with_factor(GEMM_SHARE, 0.31)
    .with_factor(PREFILL_SHARE, 0.6)
    .with_factor(MFU, 0.4)
    .with_factor(HALF_TOKENS, 0.02)
    .with_factor(HANDOVER_RATE, 0.03)
    .with_factor(HOP_S, 9.0)
    .with_factor(INSTALL_FIXED, 0.5)
    .with_factor(GRADING_S, 0.2)
)
FITTED = (
    STEP_OVERHEAD, GEMM_SHARE, PREFILL_SHARE, MFU, HALF_TOKENS, HANDOVER_RATE, HOP_S, INSTALL_FIXED, GRADING_S,
)  # fmt: skip


def recording(
    book: Book = TRUTH,
    *,
    noise: float = 1e-7,
    batches: Sequence[int] = (2, 8, 40),
    sizes: Sequence[int] = (900, 4_000),
) -> Iterator[FactBody]:
    """The facts of a run whose costs follow the formulas with these constants, plus some noise, as clock readings are
    never exact."""
    chance = Chance(3, "recording")
    decode = DecodeCost.of(CPU, MODEL, tp=1, book=book)
    read_s = prefill_token_s(CPU, MODEL, tp=1, book=book)

    def noisy(seconds: float) -> float:
        return seconds * (1 + noise * chance.uniform(-1, 1))

    yield PipelineReady(num_replicas=1, num_parameters=PARAMETERS)
    state = ReplicaState(
        replica=0, incarnation=1, version=0, kv_used=0.1, num_running=8, num_waiting=0, num_with_environment=0,
        num_prefilled=1_000, num_decoded=9_000, num_steps=400, decode_s=77.0, num_installs=3, install_s=5.0, spans=[],
    )  # fmt: skip
    yield ReplicasObserved(replicas=[state], num_replicas=1)
    for at in range(24):
        batch, steps, read = batches[at % len(batches)], chance.whole(100, 200), chance.whole(50, 2_000)
        state = state.model_copy(
            update={
                "num_prefilled": state.num_prefilled + read,
                "num_decoded": state.num_decoded + batch * steps,
                "num_steps": state.num_steps + steps,
                "decode_s": state.decode_s + noisy(decode.steps_s(steps, batch, 0) + read * read_s),
                "num_installs": state.num_installs + 2,
                "install_s": state.install_s + 2 * noisy(install_s(CPU, MODEL, tp=1, book=book)),
            }
        )
        yield ReplicasObserved(replicas=[state], num_replicas=1)
        tokens = sizes[at % len(sizes)] + (chance.whole(0, 300) if len(sizes) > 1 else 0)
        training_s = noisy(training_cost(CPU, MODEL, devices=1, tokens=tokens, updates=2, book=book).total_s)
        stall_s, waited_s = noisy(handover_s(MODEL, book=book)), chance.uniform(0, 3)
        step_s = training_s + stall_s + waited_s
        metrics = {
            "trainer/step_s": step_s,
            "trainer/wait_fraction": waited_s / step_s,
            "trainer/handover_s": stall_s,
            "weights/broadcast_s": noisy(broadcast_s(MODEL, relays=1, book=book)),
            "environment/seconds_mean": noisy(grading_s(book)),
            "train/tokens": float(tokens),
            "train/updates": 2.0,
            "train/skipped": 0.0,
        }
        yield StepTrained(step=at + 1, metrics=metrics)


def written(bodies: Iterator[FactBody], path: Path) -> Path:
    sink = JsonlSink(path)
    for body in bodies:
        sink.record(body)
    sink.close(timeout_s=0)
    return path


def fit_of(bodies: Iterator[FactBody], path: Path) -> DeviceFit:
    return fit(observed(read_facts(written(bodies, path))), CPU)


def of(found: DeviceFit, constant: Constant) -> Fitted:
    return next(each for each in found.constants if each.constant is constant)


def test_the_constants_that_a_recording_was_made_with_come_out(tmp_path: Path) -> None:
    found = fit_of(recording(), tmp_path / "facts.jsonl")
    for constant in FITTED:
        each = of(found, constant)
        assert not each.why_not, (constant.name, each.why_not)
        assert each.value == pytest.approx(TRUTH(constant), rel=2e-5), constant.name
        assert found.book(constant) == pytest.approx(each.value)
        assert each.num_observations == (23 if constant in (MFU, HALF_TOKENS) else 24), constant.name
        assert each.residual == pytest.approx(0, abs=2e-5)
    for constant in (READ_SHARE, FORWARD_GAIN):
        assert of(found, constant).why_not and of(found, constant).value == constant.value


def test_noise_is_the_residual_and_moves_constants_by_less(tmp_path: Path) -> None:
    found = fit_of(recording(noise=0.1), tmp_path / "facts.jsonl")
    for constant in FITTED:
        each = of(found, constant)
        assert 0.01 < each.residual < 0.15, constant.name
        assert each.error > 0 and abs(each.value / TRUTH(constant) - 1) < 4 * each.error, constant.name
    assert of(found, HANDOVER_RATE).value == pytest.approx(TRUTH(HANDOVER_RATE), rel=0.05)


def test_equal_batches_cannot_separate_steps_from_rows(tmp_path: Path) -> None:
    found = fit_of(recording(batches=(32,), sizes=(2_000,)), tmp_path / "facts.jsonl")
    for constant in (STEP_OVERHEAD, GEMM_SHARE, PREFILL_SHARE, MFU, HALF_TOKENS):
        assert "one figure" in of(found, constant).why_not
        assert of(found, constant).value == constant.value
    assert not of(found, HANDOVER_RATE).why_not


def test_memory_bound_run_does_not_determine_arithmetic(tmp_path: Path) -> None:
    fast = TRUTH.with_factor(GEMM_SHARE, 400.0)
    found = fit_of(recording(fast), tmp_path / "facts.jsonl")
    assert "bound by memory" in of(found, GEMM_SHARE).why_not
    assert of(found, STEP_OVERHEAD).value == pytest.approx(fast(STEP_OVERHEAD), rel=1e-3)


def test_negative_row_cost_is_reported_as_unmeasured(tmp_path: Path) -> None:
    """Steps of more rows took less time: no formula explains that, so the cost of a row is unknown."""
    state = ReplicaState(
        replica=0, incarnation=0, version=0, kv_used=0, num_running=0, num_waiting=0, num_with_environment=0,
        num_prefilled=0, num_decoded=0, num_steps=0, spans=[],
    )  # fmt: skip
    bodies: list[FactBody] = [PipelineReady(num_replicas=1, num_parameters=PARAMETERS)]
    for at in range(9):
        more = {"num_steps": 100, "num_decoded": 100 * (2 + 9 * (at % 3)), "num_prefilled": 7 + 13 * (at % 2)}
        state = state.model_copy(
            update={
                **{name: getattr(state, name) + by for name, by in more.items()},
                "decode_s": state.decode_s + 9.0 - (at % 3),
            }
        )
        bodies.append(ReplicasObserved(replicas=[state], num_replicas=1))
    found = fit_of(iter(bodies), tmp_path / "facts.jsonl")
    assert "more rows took no longer" in of(found, GEMM_SHARE).why_not
    assert of(found, GEMM_SHARE).value == GEMM_SHARE.value and not of(found, STEP_OVERHEAD).why_not


def test_undetermined_constant_keeps_its_value_and_a_reason(tmp_path: Path) -> None:
    bodies = [body for body in recording() if not isinstance(body, ReplicasObserved)]
    bare = [
        body.model_copy(update={"metrics": {"train/tokens": 1.0}}) if isinstance(body, StepTrained) else body
        for body in bodies
    ]
    found = fit_of(iter(bare), tmp_path / "facts.jsonl")
    assert all(each.why_not and each.value == each.constant.value for each in found.constants)
    with pytest.raises(ValueError, match="never got ready"):
        fit_of(iter(bare[1:]), tmp_path / "others.jsonl")


def test_truncated_line_is_skipped_and_a_non_fact_refused(tmp_path: Path) -> None:
    path = written(recording(), tmp_path / "facts.jsonl")
    whole = len(list(read_facts(path)))
    text = path.read_text()
    path.write_text(text[: len(text) - 40])
    assert len(list(read_facts(path))) == whole - 1
    path.write_text(text + "no fact\n" + text)
    with pytest.raises(ValueError, match="not a fact"):
        list(read_facts(path))


def test_least_squares_solve_separable_unknowns() -> None:
    rows = [(1.0, 4.0), (2.0, 3.0), (3.0, 9.0), (5.0, 1.0)]
    exact = fitted(rows, [2 * a + 0.5 * b for a, b in rows])
    assert exact.values == pytest.approx((2.0, 0.5)) and exact.errors == pytest.approx((0, 0), abs=1e-9)
    assert fitted(rows, [2 * a - 0.5 * b for a, b in rows]).values[1] == 0
    # A mean: its error is the standard deviation over the root of the number.
    mean = fitted([(1.0,)] * 4, [1.0, 2.0, 3.0, 6.0])
    assert mean.values[0] == pytest.approx(3.0)
    assert mean.errors[0] == pytest.approx((14 / 3) ** 0.5 / 2) and mean.residual == pytest.approx(3.5**0.5 / 3)
    with pytest.raises(Indistinct):
        fitted([(a, 3 * a) for a, _ in rows], [1.0, 2.0, 3.0, 4.0])
    with pytest.raises(Indistinct):
        fitted([(1.0, 0.0), (2.0, 0.0)], [1.0, 2.0])


def test_command_lists_fitted_and_unfitted_constants(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*words: str) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["engine", "simulate", "calibration", *words])
        code = main()
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    path = written(recording(), tmp_path / "facts.jsonl")
    code, output = run("--calibrate", str(path), "--json")
    constants = {each["name"]: each for each in json.loads(output)["constants"]}
    assert code == 0 and constants["step_overhead"]["factor"] == pytest.approx(1.7, rel=1e-4)
    assert constants["read_share"]["residual"] is None and constants["read_share"]["why_not"]
    code, output = run("--calibrate", str(path))
    assert code == 0 and "observations, residual" in output and "unchanged: one model alone" in output
    code, output = run("--calibrate", str(tmp_path / "nothing.jsonl"))
    assert code == 2 and "No such file" in output
