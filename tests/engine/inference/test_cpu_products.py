"""A CPU multiplies in the way that measured fastest; the results differ by rounding only."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import engine.inference.cpu_products as cpu_products
from engine.inference.cpu_products import CpuProducts, MatrixShape, choose, measure, products_for
from engine.inference.port import SamplingParams, SequenceOutput, SequenceRequest
from engine.inference.torch_engine import TorchRolloutEngine
from engine.models.loading import DTYPES, load_decoder, model_tensors, read_config
from engine.policy.lineage import WeightsId
from engine.weights.snapshot import pack_weights
from tests.engine.conftest import MakeLlama

pytestmark = pytest.mark.usefixtures("one_thread")

LARGE, SMALL = MatrixShape(1_024, 1_024), MatrixShape(96, 32)
BF16, FP32 = torch.bfloat16, torch.float32


def way(dtype: torch.dtype, *, by_columns: bool = False) -> CpuProducts:
    return CpuProducts(dtype=dtype, by_columns=by_columns)


def chosen(stored: torch.dtype, times: dict[CpuProducts, float], shape: MatrixShape = LARGE) -> CpuProducts:
    return choose(stored, shape, lambda ways, _: {each: times[each] for each in ways})


@pytest.mark.parametrize(
    ("ms", "expected"),
    [
        ((0.08, 0.09, 0.19, 0.32), way(BF16)),  # AVX-512 with bfloat16
        ((0.30, 6.71, 0.16, 0.19), way(FP32)),  # AVX2
        ((0.90, 8.50, 0.50, 0.60), way(FP32)),
        ((0.90, 0.50, 0.80, 0.80), way(BF16, by_columns=True)),
        ((0.90, 0.90, 0.50, 0.30), way(FP32, by_columns=True)),
        ((0.80, 0.74, 0.76, 0.80), way(BF16)),  # nothing is faster by more than chance
    ],
)
def test_fastest_way_is_chosen_beyond_measurement_noise(
    ms: tuple[float, float, float, float], expected: CpuProducts
) -> None:
    ways = [way(dtype, by_columns=by_columns) for dtype in (BF16, FP32) for by_columns in (False, True)]
    assert chosen(BF16, dict(zip(ways, ms, strict=True))) == expected


@pytest.mark.parametrize(("stored", "shape"), [(FP32, LARGE), (BF16, SMALL)])
@pytest.mark.parametrize("by_columns", [False, True])
def test_float32_stays_and_a_small_model_keeps_its_dtype(
    stored: torch.dtype, shape: MatrixShape, by_columns: bool
) -> None:
    times = {way(stored, by_columns=each): 1.0 if each == by_columns else 2.0 for each in (False, True)}
    assert chosen(stored, times, shape) == way(stored, by_columns=by_columns)


def test_choice_is_measured_once_and_logged(
    make_llama: MakeLlama, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    measured: list[CpuProducts] = []

    def each_faster_than_the_last(ways: Sequence[CpuProducts], shape: MatrixShape) -> dict[CpuProducts, float]:
        measured.extend(ways)
        return {each: 1.0 / place for place, each in enumerate(ways, start=1)}

    monkeypatch.setattr(cpu_products, "measure", each_faster_than_the_last)
    monkeypatch.setattr(cpu_products, "_chosen", {})
    config = replace(read_config(make_llama()), dtype=BF16, width=2_048, mlp_width=4_096)
    with caplog.at_level(logging.INFO, cpu_products.__name__):
        assert [products_for(each) for each in (config, replace(config, width=4_096))] == [
            way(FP32, by_columns=True)
        ] * 2
    assert len(measured) == 4
    (message,) = caplog.messages
    for part in ("chosen='float32 by columns'", "1024x1024", "bfloat16 by rows 1000.000", "float32 by columns 250.000"):
        assert part in message


@pytest.mark.parametrize("dtype", DTYPES.values())
def test_each_way_can_be_measured(dtype: torch.dtype) -> None:
    ways = [way(dtype), way(dtype, by_columns=True)]
    times = measure(ways, SMALL)
    assert list(times) == ways and all(seconds > 0.0 for seconds in times.values())


def answers(engine: TorchRolloutEngine) -> list[SequenceOutput]:
    sampling = SamplingParams(max_new_tokens=12, temperature=0.0, seed=0)
    prompts = [(5, 6, 7), (9,), (11, 12, 4, 8)]
    engine.submit(
        [
            SequenceRequest(sequence_id=str(number), prompt_ids=ids, sampling=sampling)
            for number, ids in enumerate(prompts)
        ]
    )
    ended: list[SequenceOutput] = []
    while len(ended) < len(prompts):
        ended += engine.step()
    return sorted(ended, key=lambda each: each.sequence_id)


@pytest.mark.parametrize("stored", ["float32", "bfloat16"])
@pytest.mark.parametrize("by_columns", [False, True])
def test_engine_output_is_the_same_with_any_choice(
    make_llama: MakeLlama, monkeypatch: pytest.MonkeyPatch, stored: str, by_columns: bool
) -> None:
    """In float32, from the same numbers: about 400 additions a log-prob of up to 16, in another order. An installed
    version takes on the present layout."""
    folder: Path = make_llama(dtype=stored)
    monkeypatch.setattr("engine.inference.torch_engine.products_for", lambda _: way(FP32))
    expected = answers(TorchRolloutEngine(folder, max_batch=4, device="cpu"))
    monkeypatch.setattr("engine.inference.torch_engine.products_for", lambda _: way(FP32, by_columns=by_columns))
    engine = TorchRolloutEngine(folder, max_batch=4, device="cpu")
    engine.install(pack_weights(model_tensors(load_decoder(folder, device="cpu")), weights=WeightsId(0, 1)))
    matrix = engine._model.get_parameter("layers.0.gate_up_2FD")
    assert matrix.dtype == FP32 and matrix.is_contiguous() != by_columns
    for output, wanted in zip(answers(engine), expected, strict=True):
        assert output.token_ids == wanted.token_ids
        assert output.logprobs == pytest.approx(wanted.logprobs, rel=0.0, abs=16 * 400**0.5 * 2.0**-24)
    held, original = model_tensors(engine._model), load_file(folder / "model.safetensors")
    assert all(torch.equal(held[name], original[name].float()) for name in original)
    assert held.keys() == original.keys()
