"""Agreement of a device with the CPU: the CPU agrees with itself, and an error exceeds its bound."""

from argparse import Namespace
from typing import Any

import pytest
import torch
from torch.nn import functional

from tests.bench.engine import agreement
from tests.bench.engine.agreement import PARTS, measure

pytestmark = pytest.mark.usefixtures("one_thread")


def rows_of(*parts: str) -> dict[str, Any]:
    report = measure(Namespace(device="cpu", parts=parts))
    return {str(row["figure"]): row for row in report.rows}


@pytest.mark.parametrize("part", PARTS)
def test_the_cpu_agrees_with_itself(part: str) -> None:
    rows = rows_of(part)
    assert rows and all(row["ok"] == 1 for row in rows.values()), rows


def test_attention_that_sees_the_future_is_beyond_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    attend = functional.scaled_dot_product_attention
    monkeypatch.setattr(
        functional,
        "scaled_dot_product_attention",
        lambda q, k, v, **more: attend(q, k, v, **{**more, "is_causal": q.dtype != torch.float32}),
    )
    assert not any(row["ok"] for row in rows_of("attention").values())


def test_step_that_differs_on_another_device_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, made = agreement._trainer, []

    def other(device: str, dtype: Any) -> Any:
        made.append(trainer(device, dtype))
        if len(made) == 3:  # the device's in float32
            with torch.no_grad():
                next(made[-1]._model.parameters()).mul_(1.01)
        return made[-1]

    monkeypatch.setattr(agreement, "_trainer", other)
    oks = [row["ok"] for row in rows_of("trainer").values()]
    assert oks == [0, 0, 0, 1, 1]


def test_different_steps_have_different_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([agreement._answers()[: 8 + 4 * (number > 2)] for number in range(12)])
    monkeypatch.setattr(agreement, "_answers", lambda: next(answers))
    assert [row["ok"] for row in rows_of("replay").values()] == [0, 1]


def test_a_part_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*given: object) -> object:
        raise NotImplementedError("no such kernel")

    monkeypatch.setitem(PARTS, "attention", breaks)
    report = measure(Namespace(device="cpu", parts=["attention"]))
    assert report.remarks == ["could not be tried: attention: NotImplementedError: no such kernel"]
    assert report.rows == [{"figure": "attention", "gap": None, "bound": None, "ok": 0}]


def test_without_a_gpu_nothing_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    report = measure(Namespace(device="cuda", parts=list(PARTS)))
    assert not report.rows and report.remarks == ["No GPU here: nothing was tried."]
