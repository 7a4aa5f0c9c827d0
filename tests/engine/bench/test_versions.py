"""The cost of versions in learning: the trace is the simulated run's, and answers follow its versions."""

from collections.abc import Iterator

import pytest
import torch

from engine.inference.port import SamplingParams
from engine.inference.torch_engine import TorchRolloutEngine
from engine.models.loading import DEMO_FOLDER
from engine.policy.lineage import WeightsId
from engine.spec.job import JobSpec
from engine.training.held_weights import HeldWeights
from engine.weights.port import WeightVersion
from tests.bench.engine.versions.answers import Wanted, write
from tests.bench.engine.versions.learner import Learner
from tests.bench.engine.versions.trace import Part, Trace, setup_of, traced


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def partial() -> Trace:
    return traced("partial", model="7B", bound=None, groups=16, steps=2, seed=1)


def test_parts_cover_every_answer_from_oldest_to_newest_version(partial: Trace) -> None:
    answers = [answer for step in partial.steps for group in step for answer in group]
    assert len(answers) == 2 * 16 * 16
    for answer in answers:
        assert sum(part.share for part in answer) == pytest.approx(1)
        assert [part.age for part in answer] == sorted((part.age for part in answer), reverse=True)
    assert any(len(answer) > 1 for answer in answers) and partial.step_s > 0


def test_lockstep_has_no_age_and_bounds_limit_the_simulated_run() -> None:
    lockstep = traced("sync_split", model="7B", bound=None, groups=16, steps=2, seed=1)
    assert {part.age for step in lockstep.steps for group in step for answer in group for part in answer} == {0}
    bounded = setup_of("partial", model="7B", bound=1, groups=16, steps=2, seed=1)
    assert bounded.schedule.max_staleness == 1 and bounded.schedule.start_lag == 1


def test_learner_spreads_prompts_and_uses_no_version_before_0(partial: Trace) -> None:
    first = partial.prompts_of(1, 4, 8)
    assert [len(group) for group in first] == [8] * 4
    assert {part.age for group in first for answer in group for part in answer} == {0}
    many = Trace(steps=[[[(Part(1.0, at),)] for at in range(12)]], step_s=1.0, staleness=0.0)
    assert [group[0][0].age for group in many.prompts_of(100, 4, 1)] == [0, 3, 6, 9]


@pytest.fixture(scope="module")
def versions() -> dict[int, WeightVersion]:
    """The built-in model's weights under five names: only the names tell versions apart."""
    held = HeldWeights(DEMO_FOLDER)
    return {version: held.snapshot(WeightsId(0, version)) for version in range(5)}


def test_every_token_has_the_version_of_the_trace(versions: dict[int, WeightVersion]) -> None:
    engine = TorchRolloutEngine(DEMO_FOLDER, max_batch=8, device="cpu")
    answers = {
        "alone": (Part(1.0, 2),),
        "mixed": (Part(0.5, 4), Part(0.25, 1), Part(0.25, 0)),
        "late": (Part(0.01, 3), Part(0.99, 0)),
    }
    wanted = [
        Wanted(
            name=name,
            prompt_ids=tuple(range(3, 9)),
            sampling=SamplingParams(max_new_tokens=40, temperature=1.0, seed=7),
            answer=answer,
        )
        for name, answer in answers.items()
    ]
    written = write(engine, wanted, trained=4, versions=versions)
    assert set(written) == set(answers)
    whole = written["alone"]
    for name, answer in answers.items():
        found = written[name]
        # The weights are the same under every name, so a change of version must not change the text.
        assert found.token_ids == whole.token_ids and found.logprobs == pytest.approx(whole.logprobs, abs=1e-4)
        ages = [part.age for part in answer for _ in range(round(part.share * len(found.token_ids)))]
        differing = sum(one != other for one, other in zip(found.ages, ages, strict=False))
        assert differing <= len(answer)  # rounding at each end of a part
        assert list(found.ages) == sorted(found.ages, reverse=True)


@pytest.mark.long
def test_equal_seed_and_trace_reproduce_learning(partial: Trace) -> None:
    spec = JobSpec.model_validate(
        {
            "name": "versions",
            "environment": {"name": "running_sums"},
            "training": {"steps": 3, "prompts_per_step": 4, "seed": 1},
            "algorithm": {"group_size": 4},
            "optimizer": {"learning_rate": 1e-2, "warmup_steps": 0},
            "rollout": {"max_batch": 16, "max_new_tokens": 60},
            "evaluation": {"prompts": 8},
        }
    )
    first, again = (Learner(spec, partial).learn(evaluate_every=2) for _ in range(2))
    assert first == again
    assert [step for step, _ in first.held_out] == [0, 2, 3]
    fresh, oldest = (Trace(steps=[[[(Part(1.0, age),)]]], step_s=1.0, staleness=age) for age in (0, 9))
    learned = [Learner(spec, trace).learn(evaluate_every=2) for trace in (fresh, oldest)]
    assert learned[0].staleness == 0 < learned[1].staleness <= 2
    assert learned[0].reward[0] == learned[1].reward[0] and learned[0].reward != learned[1].reward
