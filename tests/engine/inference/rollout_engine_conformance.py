"""Duties of any engine behind the rollout port. `class TestMine(RolloutEngineConformance)` runs them on one.

The subclass gives the fixture `make_engine(folder, *, copy=0)`: an engine on the folder's own weights as version 0,
with nothing in flight and room for 8 sequences at once. It may hand out the same engine again for the same
arguments (starting one is costly), so every test leaves its engines idle; another `copy` is another engine.

Longer than most files: it is one class, so that a second engine takes all of it by one name.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import pytest
import torch

from engine.inference.port import SamplingParams, SequenceOutput, SequenceProgress, SequenceRequest
from engine.weights.port import Probe
from engine.weights.probe import OtherWeights, compare, probe_ids
from tests.engine.inference.rollout_engine_builders import (
    EOS,
    MAX_POSITIONS,
    VOCAB_SIZE,
    MakeEngine,
    Reference,
    adapted,
    answer,
    ask,
    chi_square_excess,
    finish,
    make_model,
    own_weights,
    perturbed,
    step_until,
    with_halves_swapped,
    without_sums,
    word_of,
)

PROMPTS = [(5, 6, 7), (8,), tuple(range(9, 50)), (4, 30, 31, 12), (11, 12), (20,) * 19]
GetReference = Callable[[bool], Reference]
_REFERENCES: dict[bool, Reference] = {}  # once per process: engines are cached by their folder


class RolloutEngineConformance:
    exact_seeds: ClassVar[bool] = True
    """A draw depends only on the seed and the position, not on the batch or the engine."""
    kv_export: ClassVar[bool] = True
    """Moves can carry the KV cache."""
    untruncated_logprobs: ClassVar[bool] = True
    """With top-p, top-k or min-p, log-probs are still over the whole vocabulary."""
    tolerance: ClassVar[float] = 5e-5
    """For log-probs: float32 sums in another order."""
    num_draws: ClassVar[int] = 600

    @pytest.fixture
    def reference(self, tmp_path_factory: pytest.TempPathFactory) -> GetReference:
        """The argument: whether embedding and head are tied."""

        def get(tied: bool) -> Reference:
            if tied not in _REFERENCES:
                _REFERENCES[tied] = make_model(tmp_path_factory.mktemp("model"), tied=tied)
            return _REFERENCES[tied]

        return get

    # Tokens ------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("tied", [False, True])
    def test_greedy_output_matches_transformers_across_a_swap(
        self, make_engine: MakeEngine, reference: GetReference, tied: bool
    ) -> None:
        base = reference(tied)
        engine = make_engine(base.folder)
        weights, changed = perturbed(base, version=3)
        for installed, expected in ((None, base), (weights, changed), (own_weights(base, version=4), base)):
            if installed is not None:
                engine.install(installed)
                assert engine.view().version == installed.version
            engine.submit([ask(str(i), prompt) for i, prompt in enumerate(PROMPTS)])
            outputs = finish(engine)
            assert {i: outputs[str(i)].token_ids for i in range(len(PROMPTS))} == {
                i: expected.greedy(prompt, 24) for i, prompt in enumerate(PROMPTS)
            }
        assert base.greedy(PROMPTS[2], 24) != changed.greedy(PROMPTS[2], 24)

    @pytest.mark.parametrize("tied", [False, True])
    def test_adapter_is_added_to_the_base_after_any_install(
        self, make_engine: MakeEngine, reference: GetReference, tied: bool
    ) -> None:
        base = reference(tied)
        engine = make_engine(base.folder)
        versions = adapted(base, version=3), adapted(base, version=4), perturbed(base, version=5)
        for version, expected in (*versions, versions[0], (own_weights(base, version=6), base)):
            engine.install(version)
            engine.submit([ask(str(i), prompt) for i, prompt in enumerate(PROMPTS)])
            outputs = finish(engine)
            assert {i: outputs[str(i)].token_ids for i in range(len(PROMPTS))} == {
                i: expected.greedy(prompt, 24) for i, prompt in enumerate(PROMPTS)
            }

    # Probes ------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("tied", [False, True])
    def test_probe_matches_transformers_and_affects_no_sequence(
        self, make_engine: MakeEngine, reference: GetReference, tied: bool
    ) -> None:
        base = reference(tied)
        engine = make_engine(base.folder)
        row = probe_ids(VOCAB_SIZE, max_positions=MAX_POSITIONS)
        requests = [ask(str(i), (5 + i, 6, 7), temperature=1.0, seed=i) for i in range(12)]  # some of them wait
        engine.submit(requests)
        undisturbed = finish(engine)
        engine.submit(requests)
        outputs = {each.sequence_id: each for _ in range(3) for each in engine.step()}
        in_flight = engine.view().num_running + engine.view().num_waiting
        assert engine.probe(row) == pytest.approx(base.logprobs(row[:1], row[1:], 1.0), abs=self.tolerance)
        assert engine.view().num_running + engine.view().num_waiting == in_flight
        assert outputs | finish(engine) == undisturbed

    @pytest.mark.parametrize("tied", [False, True])
    def test_probe_detects_weights_in_wrong_places(
        self, make_engine: MakeEngine, reference: GetReference, tied: bool
    ) -> None:
        base = reference(tied)
        engine = make_engine(base.folder)
        weights, changed = perturbed(base, version=3)
        row = probe_ids(VOCAB_SIZE, max_positions=MAX_POSITIONS)
        probe = Probe(token_ids=row, logprobs=tuple(changed.logprobs(row[:1], row[1:], 1.0)), tolerance=1e-3)
        manifest = replace(weights.manifest, probe=probe)
        engine.install(weights)
        compare(manifest, engine.probe(row))
        for name in ("model.embed_tokens.weight", "model.layers.0.self_attn.o_proj.weight", "model.norm.weight"):
            engine.install(without_sums(with_halves_swapped(weights, name)))  # the same values in other places
            with pytest.raises(OtherWeights, match=r"version 3: .* not the trainer's"):
                compare(manifest, engine.probe(row))

    @pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
    def test_log_probs_match_transformers_at_that_temperature(
        self, make_engine: MakeEngine, reference: GetReference, temperature: float
    ) -> None:
        base = reference(False)
        engine = make_engine(base.folder)
        engine.submit([ask(str(i), prompt, temperature=temperature, seed=i) for i, prompt in enumerate(PROMPTS)])
        for i, output in finish(engine).items():
            expected = base.logprobs(PROMPTS[int(i)], output.token_ids, temperature or 1.0)
            assert output.logprobs == pytest.approx(expected, abs=self.tolerance)

    def test_log_probs_of_cut_draws_are_of_the_whole_vocabulary(
        self, make_engine: MakeEngine, reference: GetReference
    ) -> None:
        if not self.untruncated_logprobs:
            pytest.skip("this engine has log-probs of the cut distribution only")
        base, engine = reference(False), make_engine(reference(False).folder)
        cut = ask("a", PROMPTS[2], temperature=0.8, top_p=0.6, top_k=7, min_p=0.05, seed=4)
        output = answer(engine, cut)
        expected = base.logprobs(PROMPTS[2], output.token_ids, 0.8)
        assert output.logprobs == pytest.approx(expected, abs=self.tolerance)

    @pytest.mark.parametrize(
        "cut",
        [
            {"temperature": 1.0},
            {"temperature": 2.0},
            {"temperature": 2.0, "top_k": 6},
            {"temperature": 2.0, "top_p": 0.7},
            {"temperature": 2.0, "min_p": 0.15},
            {"temperature": 2.0, "top_k": 12, "top_p": 0.8},
        ],
        ids=str,
    )
    def test_draws_follow_the_distribution(
        self, make_engine: MakeEngine, reference: GetReference, cut: dict[str, float]
    ) -> None:
        base = reference(False)
        engine = make_engine(base.folder)
        engine.submit([ask(str(i), PROMPTS[0], new=1, seed=1_000 + i, **cut) for i in range(self.num_draws)])  # type: ignore[arg-type]
        drawn_N = torch.tensor([output.token_ids[0] for output in finish(engine).values()])
        counts_V = torch.bincount(drawn_N, minlength=VOCAB_SIZE)
        expected_V = cut_distribution(base.logits(PROMPTS[0])[-1], **cut)  # type: ignore[arg-type]
        assert counts_V.sum() == self.num_draws
        assert not counts_V[expected_V == 0].any()
        assert chi_square_excess(counts_V.tolist(), (expected_V * self.num_draws).tolist()) < 4.0

    def test_same_seed_draws_the_same_in_any_batch(self, make_engine: MakeEngine, reference: GetReference) -> None:
        if not self.exact_seeds:
            pytest.skip("this engine's draws depend on the batch")
        engine = make_engine(reference(False).folder)
        requests = [ask(f"{i}/{k}", PROMPTS[i], temperature=1.0, seed=10 * i + k) for i in range(4) for k in range(3)]
        engine.submit(requests)
        together = finish(engine)
        for request in requests[::3]:
            alone = answer(engine, request)
            assert alone.token_ids == together[request.sequence_id].token_ids
        first = [together[f"0/{k}"].token_ids for k in range(3)]
        assert len(set(first)) == 3

    # Ends --------------------------------------------------------------------------------------------------------

    def test_an_answer_ends_with_the_end_token_or_at_its_length(
        self, make_engine: MakeEngine, reference: GetReference
    ) -> None:
        engine = make_engine(reference(False).folder)
        engine.submit([ask(str(i), PROMPTS[i % 6], temperature=2.0, new=1 + i % 40, seed=i) for i in range(60)])
        outputs = finish(engine)
        for i in range(60):
            output = outputs[str(i)]
            ended = output.token_ids[-1] == EOS
            assert output.reason == ("stop" if ended else "length")
            assert EOS not in output.token_ids[:-1]
            assert len(output.token_ids) == 1 + i % 40 or ended
            assert len(output.token_ids) == len(output.logprobs) == len(output.versions)
        assert {each.reason for each in outputs.values()} == {"stop", "length"}

    def test_an_answer_ends_where_the_models_positions_end(
        self, make_engine: MakeEngine, reference: GetReference
    ) -> None:
        engine = make_engine(reference(False).folder)
        output = answer(engine, ask("a", (5,) * (MAX_POSITIONS - 4), temperature=1.0, new=50, seed=1))
        assert len(output.token_ids) == 4 or output.reason == "stop"
        assert len(output.token_ids) <= 4

    def test_answer_ends_with_token_completing_a_stop_string(
        self, make_engine: MakeEngine, reference: GetReference
    ) -> None:
        base = reference(False)
        engine = make_engine(base.folder)
        whole = base.greedy(PROMPTS[2], 24)
        text = base.text(whole)
        assert len(whole) > 12
        for stop in (
            (text[9:12],),  # from within one token to the end of the next
            (text[10:13],),  # ends within a token
            (word_of(whole[3]),),
            ("never", text[14:17], text[20:24]),
        ):
            output = answer(engine, ask("a", PROMPTS[2], stop=stop))
            lengths = range(1, len(whole) + 1)
            expected = next(n for n in lengths if any(each in base.text(whole[:n]) for each in stop))
            assert (output.token_ids, output.reason) == (whole[:expected], "stop")
        assert answer(engine, ask("a", PROMPTS[2], stop=("never",))).token_ids == whole

    # Life of a sequence ------------------------------------------------------------------------------------------

    def test_every_submitted_sequence_comes_back_exactly_once(
        self, make_engine: MakeEngine, reference: GetReference
    ) -> None:
        engine = make_engine(reference(False).folder)
        ended: list[SequenceOutput] = []
        for turn in range(12):
            engine.submit([ask(f"{turn}/{k}", PROMPTS[k], temperature=1.0, new=2 + turn, seed=turn) for k in range(4)])
            if turn % 3 == 2:
                ended += engine.abort([f"{turn}/0", f"{turn - 1}/1", "0/0"])
            ended += engine.step()
        assert engine.view().num_running > 0
        ended += finish(engine).values()
        assert sorted(each.sequence_id for each in ended) == sorted(
            f"{turn}/{k}" for turn in range(12) for k in range(4)
        )
        assert engine.step() == []
        assert (engine.view().num_running, engine.view().num_waiting, engine.view().kv_used) == (0, 0, 0.0)

    def test_abort_returns_tokens_so_far_and_affects_no_others(
        self, make_engine: MakeEngine, reference: GetReference
    ) -> None:
        base = reference(False)
        engine = make_engine(base.folder)
        engine.submit([ask("a", PROMPTS[2]), ask("b", PROMPTS[3])])
        num_tokens = step_until(engine, "a", 3)
        assert engine.view().kv_used > 0.0
        (partial,) = engine.abort(["a", "unknown"])
        assert (partial.sequence_id, partial.reason) == ("a", "aborted")
        assert partial.token_ids == base.greedy(PROMPTS[2], 24)[:num_tokens]
        assert partial.logprobs == pytest.approx(base.logprobs(PROMPTS[2], partial.token_ids, 1.0), abs=self.tolerance)
        assert engine.abort(["a"]) == []
        rest = finish(engine)
        assert rest.keys() == {"b"}
        assert rest["b"].token_ids == base.greedy(PROMPTS[3], 24)

    def test_every_token_carries_the_version_that_wrote_it(
        self, make_engine: MakeEngine, reference: GetReference
    ) -> None:
        base = reference(False)
        engine = make_engine(base.folder)
        engine.submit([ask("a", PROMPTS[2])])
        num_tokens = step_until(engine, "a", 4)
        engine.install(own_weights(base, version=9))
        output = finish(engine)["a"]
        assert output.versions == (0,) * num_tokens + (9,) * (len(output.token_ids) - num_tokens)
        assert 9 in output.versions
        assert output.token_ids == base.greedy(PROMPTS[2], 24)  # the same weights under another number

    def test_view_counts_sequences_in_flight_and_generated_tokens(
        self, make_engine: MakeEngine, reference: GetReference
    ) -> None:
        engine = make_engine(reference(False).folder)
        before = engine.view()
        engine.submit([ask(str(i), PROMPTS[2], temperature=1.0, new=12, seed=i) for i in range(10)])
        engine.step()
        during = engine.view()
        assert during.num_running + during.num_waiting >= 9
        assert 0 < during.num_running <= 8
        assert 0.0 <= during.kv_used <= 1.0
        outputs = finish(engine)
        num_tokens = sum(len(each.token_ids) for each in outputs.values())
        assert engine.view().num_decoded - before.num_decoded == num_tokens
        assert engine.view().num_prefilled > before.num_prefilled

    # Moves -------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("with_kv", [True, False])
    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_move_in_the_middle_does_not_change_the_answer(
        self, make_engine: MakeEngine, reference: GetReference, temperature: float, with_kv: bool
    ) -> None:
        if temperature and not self.exact_seeds:
            pytest.skip("this engine's draws depend on where they are drawn")
        base = reference(False)
        first, second = make_engine(base.folder), make_engine(base.folder, copy=1)
        request = ask("a", PROMPTS[2], temperature=temperature, seed=7)
        whole = answer(first, request)
        first.submit([request, ask("stays", PROMPTS[3])])
        second.submit([ask("was here", PROMPTS[5])])
        num_tokens = step_until(first, "a", 5)
        (moved,) = first.export(["a", "unknown"], leave=True, with_kv=with_kv)
        assert moved.progress is not None
        assert moved.progress.token_ids == whole.token_ids[:num_tokens]
        assert (moved.progress.kv is not None) == (with_kv and self.kv_export)
        assert first.view().num_running + first.view().num_waiting == 1
        step_until(second, "was here", 1)
        prefilled = second.view().num_prefilled
        second.submit([moved])
        output = finish(second)["a"]
        if with_kv and self.kv_export:
            assert second.view().num_prefilled == prefilled
        assert (output.token_ids, output.versions, output.reason) == (whole.token_ids, whole.versions, whole.reason)
        assert output.logprobs == pytest.approx(whole.logprobs, abs=self.tolerance)
        assert finish(first)["stays"].token_ids == base.greedy(PROMPTS[3], 24)

    def test_sequence_exported_without_leaving_continues_on_both(
        self, make_engine: MakeEngine, reference: GetReference
    ) -> None:
        base = reference(False)
        first, second = make_engine(base.folder), make_engine(base.folder, copy=1)
        first.submit([ask("a", PROMPTS[2]), ask("b", PROMPTS[3])])
        step_until(first, "a", 4)
        copies = first.export(["a", "b"], leave=False, with_kv=False)
        here = finish(first)
        second.submit(copies)
        there = finish(second)
        for name, prompt in (("a", PROMPTS[2]), ("b", PROMPTS[3])):
            assert here[name].token_ids == there[name].token_ids == base.greedy(prompt, 24)

    def test_a_waiting_sequence_can_leave_and_come_back(self, make_engine: MakeEngine, reference: GetReference) -> None:
        base = reference(False)
        engine = make_engine(base.folder)
        requests = [ask(str(i), PROMPTS[3], new=12) for i in range(12)]
        engine.submit(requests)
        moved = engine.export(["11"], leave=True, with_kv=True)
        assert moved == [requests[11]]
        engine.submit(moved)
        outputs = finish(engine)
        assert {each.token_ids for each in outputs.values()} == {base.greedy(PROMPTS[3], 12)}
        assert len(outputs) == 12

    # Refusals ----------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("bad", [*range(16)])
    def test_submit_with_an_impossible_request_takes_none(
        self, make_engine: MakeEngine, reference: GetReference, bad: int
    ) -> None:
        engine = make_engine(reference(False).folder)
        with pytest.raises(ValueError, match="'bad'"):
            engine.submit([ask("fine", (5,)), _bad_requests()[bad]])
        assert engine.view().num_waiting + engine.view().num_running == 0
        assert answer(engine, ask("fine", (5,), new=1)).token_ids

    def test_refuses_an_id_that_is_in_flight(self, make_engine: MakeEngine, reference: GetReference) -> None:
        engine = make_engine(reference(False).folder)
        engine.submit([ask("a", PROMPTS[2])])
        for names in (["b", "a"], ["c", "c"]):
            with pytest.raises(ValueError, match="sequence_id"):
                engine.submit([ask(name, (5,)) for name in names])
        assert finish(engine).keys() == {"a"}

    def test_weights_of_another_model_are_refused_unchanged(
        self, make_engine: MakeEngine, reference: GetReference
    ) -> None:
        base = reference(False)
        engine = make_engine(base.folder)
        with pytest.raises(ValueError, match="version 5"):
            engine.install(own_weights(reference(True), version=5))
        assert engine.view().version == 0
        assert answer(engine, ask("a", PROMPTS[3])).token_ids == base.greedy(PROMPTS[3], 24)


def _bad_requests() -> list[SequenceRequest]:
    fine = ask("bad", (5, 6))

    def sampled(**changed: float | tuple[str, ...]) -> SequenceRequest:
        given = {name: getattr(fine.sampling, name) for name in SamplingParams.__dataclass_fields__}
        return replace(fine, sampling=SamplingParams(**given | changed))

    def begun(token_ids: tuple[int, ...], num_logprobs: int) -> SequenceRequest:
        return replace(
            fine,
            progress=SequenceProgress(
                token_ids=token_ids, logprobs=(-1.0,) * num_logprobs, versions=(0,) * len(token_ids)
            ),
        )

    return [
        replace(fine, prompt_ids=()),
        replace(fine, prompt_ids=(5,) * MAX_POSITIONS),
        replace(fine, prompt_ids=(VOCAB_SIZE,)),
        replace(fine, prompt_ids=(-1,)),
        sampled(max_new_tokens=0),
        sampled(temperature=-1.0),
        sampled(temperature=float("nan")),
        sampled(top_p=0.0),
        sampled(top_p=1.5),
        sampled(top_k=-1),
        sampled(min_p=-0.1),
        sampled(min_p=1.5),
        sampled(stop=("",)),
        begun((5, 6), 1),
        begun((5, VOCAB_SIZE), 2),
        begun((5,) * 24, 24),
    ]


def cut_distribution(
    logits_V: torch.Tensor, *, temperature: float, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> torch.Tensor:
    """Token by token, by definition: the likeliest k; of these the fewest that add up to p; of these all with at least
    min_p of the likeliest's probability."""
    p_V = torch.softmax(logits_V.double() / temperature, -1)
    order = p_V.argsort(descending=True).tolist()
    kept = order[: top_k or len(order)]
    among = sum(float(p_V[token]) for token in kept)
    nucleus: list[int] = []
    mass = 0.0
    for token in kept:
        if mass >= top_p * among:
            break
        nucleus.append(token)
        mass += float(p_V[token])
    final = [token for token in nucleus if float(p_V[token]) >= min_p * float(p_V[order[0]])]
    cut_V = torch.zeros_like(p_V)
    cut_V[final] = p_V[final]
    return cut_V / cut_V.sum()
