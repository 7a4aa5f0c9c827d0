"""The rollout engine: right tokens whatever runs beside them, each with its log-prob and its version."""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.inference.port import SamplingParams, SequenceOutput, SequenceRequest
from engine.inference.sampling import sample_tokens, uniforms
from engine.inference.torch_engine import TorchRolloutEngine
from engine.models.decoder import PackedAttention, token_logprobs
from engine.models.loading import load_decoder, model_tensors
from engine.models.packing import lay_out, pack
from engine.weights.port import WeightVersion
from engine.weights.snapshot import pack_weights
from tests.engine.conftest import MakeLlama

pytestmark = pytest.mark.usefixtures("one_thread")

EOS = 3  # of the random Llamas
PROMPTS = [(5, 6, 7), (8,), tuple(range(9, 30)), (4, 30, 31, 12), (11, 12), (20,) * 9]
LOGPROB_BOUND = 5e-5  # float32, other order of sums: rollout decodes token by token, the trainer sees whole sequences


def engine_of(folder: Path, max_batch: int = 8) -> TorchRolloutEngine:
    return TorchRolloutEngine(folder, max_batch=max_batch, device="cpu")


def ask(name: str, prompt: Sequence[int], *, temperature: float = 1.0, new: int = 40, seed: int = 0) -> SequenceRequest:
    sampling = SamplingParams(max_new_tokens=new, temperature=temperature, seed=seed)
    return SequenceRequest(sequence_id=name, prompt_ids=tuple(prompt), sampling=sampling)


def finish(engine: TorchRolloutEngine) -> dict[str, SequenceOutput]:
    outputs: dict[str, SequenceOutput] = {}
    while engine.view().num_running + engine.view().num_waiting:
        for output in engine.step():
            assert output.sequence_id not in outputs
            outputs[output.sequence_id] = output
    return outputs


def answer(engine: TorchRolloutEngine, request: SequenceRequest) -> SequenceOutput:
    engine.submit([request])
    return finish(engine)[request.sequence_id]


def long_request(folder: Path, temperature: float = 1.0) -> SequenceRequest:
    """One whose answer has at least ten tokens."""
    for seed in range(20):
        for prompt in PROMPTS:
            request = ask("a", prompt, temperature=temperature, seed=seed)
            if len(answer(engine_of(folder), request).token_ids) >= 10:
                return request
    raise AssertionError("the random model only gives short answers")


def perturbed(folder: Path, version: int) -> WeightVersion:
    torch.manual_seed(version)
    tensors = model_tensors(load_decoder(folder, device="cpu"))
    return pack_weights(
        {name: value + 0.1 * torch.randn_like(value) for name, value in tensors.items()}, version=version
    )


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_greedy_output_is_that_of_transformers(make_llama: MakeLlama, tied: bool, kv_heads: int) -> None:
    from transformers import LlamaForCausalLM

    folder = make_llama(tied=tied, kv_heads=kv_heads)
    theirs: Any = LlamaForCausalLM.from_pretrained(folder)
    engine = engine_of(folder, max_batch=4)  # fewer rows than prompts: rows are reused
    engine.submit([ask(str(i), prompt, temperature=0.0) for i, prompt in enumerate(PROMPTS)])
    outputs = finish(engine)
    for i, prompt in enumerate(PROMPTS):
        with torch.no_grad():
            ids = theirs.generate(torch.tensor([prompt]), max_new_tokens=40, do_sample=False)[0, len(prompt) :]
        assert outputs[str(i)].token_ids == tuple(ids.tolist())


def test_tokens_do_not_depend_on_the_batch_around_them(make_llama: MakeLlama) -> None:
    folder = make_llama()
    requests = [ask(f"{i}/{k}", prompt, seed=100 * i + k) for i, prompt in enumerate(PROMPTS) for k in range(4)]
    alone = {each.sequence_id: answer(engine_of(folder, 1), each) for each in requests}
    for max_batch in (2, 5, 24):
        engine = engine_of(folder, max_batch)
        engine.submit(random.Random(max_batch).sample(requests, len(requests)))
        for name, output in finish(engine).items():
            assert output.token_ids == alone[name].token_ids
            assert output.logprobs == pytest.approx(alone[name].logprobs, abs=LOGPROB_BOUND)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_sequence_goes_on_elsewhere_as_if_it_had_stayed(make_llama: MakeLlama, temperature: float) -> None:
    folder = make_llama()
    request = long_request(folder, temperature)
    whole = answer(engine_of(folder), request)
    first, second = engine_of(folder), engine_of(folder)
    first.submit([request])
    for _ in range(3):
        first.step()
    (partial,) = first.abort(["a"])
    sampling = replace(request.sampling, max_new_tokens=37)
    moved = replace(request, prompt_ids=request.prompt_ids + partial.token_ids, sampling=sampling)
    rest = answer(second, moved)
    assert partial.token_ids + rest.token_ids == whole.token_ids


def test_log_probs_agree_with_the_trainers_forward(make_llama: MakeLlama) -> None:
    folder, temperature = make_llama(), 0.8
    engine = engine_of(folder, max_batch=3)
    engine.submit([ask(str(i), prompt, temperature=temperature, seed=i) for i, prompt in enumerate(PROMPTS)])
    outputs = finish(engine)
    model = load_decoder(folder, device="cpu")
    for i, prompt in enumerate(PROMPTS):
        response = outputs[str(i)].token_ids
        packed = pack([prompt + response], lay_out([len(prompt) + len(response)], max_tokens=999), "cpu")
        with torch.no_grad():
            hidden_TD = model(packed.ids_T, packed.positions_T, PackedAttention(packed.rectangles))
            logits_NV = model.logits(hidden_TD[len(prompt) - 1 : -1])
        logprobs_N, _ = token_logprobs(logits_NV, torch.tensor(response), temperature)
        assert outputs[str(i)].logprobs == pytest.approx(logprobs_N.tolist(), abs=LOGPROB_BOUND)


def test_every_token_knows_the_version_that_wrote_it(make_llama: MakeLlama) -> None:
    folder = make_llama()
    engine = engine_of(folder)
    engine.submit([long_request(folder)])
    for _ in range(4):
        engine.step()
    engine.install(perturbed(folder, version=7))
    assert engine.view().version == 7
    versions = finish(engine)["a"].versions
    assert versions == (0,) * 4 + (7,) * (len(versions) - 4)
    assert 7 in versions


def test_installed_weights_answer_as_if_loaded(make_llama: MakeLlama) -> None:
    folder = make_llama(tied=True)
    weights = perturbed(folder, version=1)
    engine, request = engine_of(folder), ask("a", PROMPTS[3], temperature=0.0)
    before = answer(engine, request)
    engine.install(weights)
    after = answer(engine, request)
    assert before.token_ids != after.token_ids
    engine.install(pack_weights(model_tensors(load_decoder(folder, device="cpu")), version=2))
    assert answer(engine, request).token_ids == before.token_ids


def test_weights_of_another_model_change_nothing(make_llama: MakeLlama) -> None:
    engine, request = engine_of(make_llama()), ask("a", PROMPTS[0], temperature=0.0)
    before = answer(engine, request)
    for other in (make_llama(tied=True), make_llama(kv_heads=4), make_llama(vocab_size=48)):
        with pytest.raises(ValueError, match="not of this model"):
            engine.install(perturbed(other, version=5))
    assert engine.view().version == 0
    assert answer(engine, request).token_ids == before.token_ids


def test_abort_hands_back_what_there_is_and_leaves_the_others_alone(make_llama: MakeLlama) -> None:
    folder = make_llama()
    expected = answer(engine_of(folder), ask("b", PROMPTS[2], seed=2))
    engine = engine_of(folder, max_batch=2)
    engine.submit([ask("a", PROMPTS[0], seed=5), ask("b", PROMPTS[2], seed=2), ask("waits", PROMPTS[1])])
    engine.step()
    aborted = {each.sequence_id: each for each in engine.abort(["a", "waits", "unknown"])}
    assert aborted.keys() == {"a", "waits"}
    assert [len(aborted[name].token_ids) for name in ("a", "waits")] == [1, 0]
    assert {each.reason for each in aborted.values()} == {"aborted"}
    assert finish(engine)["b"].token_ids == expected.token_ids
    assert engine.abort(["a", "b"]) == []


def test_every_submitted_sequence_comes_back_exactly_once(make_llama: MakeLlama) -> None:
    rng, engine = random.Random(4), engine_of(make_llama(), max_batch=5)
    submitted: list[str] = []
    ended: list[SequenceOutput] = []
    for turn in range(120):
        if turn < 80 and rng.random() < 0.5:
            new = [ask(f"{turn}/{k}", rng.choice(PROMPTS), new=rng.randint(1, 12), seed=turn) for k in range(3)]
            engine.submit(new)
            submitted += [each.sequence_id for each in new]
        if rng.random() < 0.15 and submitted:
            ended += engine.abort(rng.sample(submitted, min(3, len(submitted))))
        ended += engine.step()
    ended += finish(engine).values()
    assert sorted(each.sequence_id for each in ended) == sorted(submitted)
    for each in ended:
        assert len(each.token_ids) == len(each.logprobs) == len(each.versions)
        assert (each.reason == "stop") == (each.token_ids[-1:] == (EOS,))


def test_a_response_ends_where_the_models_positions_end(make_llama: MakeLlama) -> None:
    engine = engine_of(make_llama())
    longest = answer(engine, ask("a", (5,) * 159, new=50))
    assert len(longest.token_ids) == 1
    assert len(answer(engine, ask("b", (5,) * 150, new=50, seed=1)).token_ids) <= 10
    assert engine.view().kv_used == 0.0


@pytest.mark.parametrize(
    "request_given",
    [
        ask("a", ()),
        ask("a", (5,) * 160),
        ask("a", (40,)),
        ask("a", (-1,)),
        ask("a", (5,), new=0),
        ask("a", (5,), temperature=-1.0),
    ],
)
def test_refuses_what_it_cannot_run(make_llama: MakeLlama, request_given: SequenceRequest) -> None:
    engine = engine_of(make_llama())
    with pytest.raises(ValueError, match="'a'"):
        engine.submit([ask("fine", (5,)), request_given])
    assert engine.view().num_waiting == 0


def test_draws_follow_the_distribution() -> None:
    num_draws = 40_000
    logits_V = torch.tensor([1.0, 0.0, -1.0, float("-inf"), 2.0, -3.0])
    uniforms_B = uniforms(torch.arange(num_draws), torch.full((num_draws,), 17))
    for temperature in (0.5, 1.0, 2.0):
        tokens_B, logprobs_B = sample_tokens(
            logits_V.expand(num_draws, -1), torch.full((num_draws,), temperature), uniforms_B
        )
        expected_V = torch.softmax(logits_V / temperature, -1)
        counts_V = torch.bincount(tokens_B, minlength=6)
        assert counts_V[3] == 0
        errors = (counts_V / num_draws - expected_V).abs() / (expected_V * (1 - expected_V) / num_draws).sqrt()
        assert errors.nan_to_num(0.0).max() < 4.5
        torch.testing.assert_close(logprobs_B, expected_V.log()[tokens_B])


def test_uniforms_are_even_and_unlike_their_neighbours() -> None:
    seeds, positions = torch.arange(300).repeat_interleave(300), torch.arange(300).repeat(300)
    grid = uniforms(seeds, positions).view(300, 300)
    assert grid.min() >= 0.0 and grid.max() < 1.0
    assert abs(grid.mean().item() - 0.5) < 0.004
    assert abs(grid.var().item() - 1 / 12) < 0.002
    for neighbour in (grid.roll(1, 0), grid.roll(1, 1), grid.T):
        assert abs(torch.corrcoef(torch.stack((grid.flatten(), neighbour.flatten())))[0, 1].item()) < 0.015


def test_a_seed_of_any_size_is_accepted(make_llama: MakeLlama) -> None:
    engine = engine_of(make_llama())
    big = answer(engine, ask("a", PROMPTS[0], seed=2**64 - 1))
    assert big.token_ids == answer(engine, ask("a", PROMPTS[0], seed=-1)).token_ids
