"""Answers of a small model, each part by the version in the trace.

    version 3 ──▶ answers that begin on it ──▶ version 5 ──▶ answers that continue or begin on it ──▶ …

The length of an answer is not known beforehand. So each version that continues an answer writes to its end; if another
version takes over, the answer is cut where that one begins, by its share of the length.

Invariants:
- versions are installed in their order, each once a step;
- a token's log-prob and version are of the weights that wrote it; what was cut counts nowhere;
- a version that continues recomputes the cache: for a run that keeps caches only the versions are replayed.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.inference.port import RolloutEngine, SamplingParams, SequenceOutput, SequenceProgress, SequenceRequest
from engine.weights.port import WeightVersion
from tests.bench.engine.versions.trace import Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    name: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    answer: Answer
    """Ages, from the version that is trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    ages: tuple[int, ...]
    """Of each token."""
    cut: bool


@dataclass(slots=True)
class _Going:
    wanted: Wanted
    part: int = 0
    progress: SequenceProgress | None = None
    output: SequenceOutput | None = None


def write(
    engine: RolloutEngine, wanted: Sequence[Wanted], *, trained: int, versions: Mapping[int, WeightVersion]
) -> dict[str, Written]:
    """`trained`: the version that they are for."""
    due: dict[int, list[_Going]] = defaultdict(list)
    for each in wanted:
        due[trained - each.answer[0].age].append(_Going(each))
    written: dict[str, Written] = {}
    while due:
        version = min(due)
        engine.install(versions[version])
        going = due.pop(version)
        _run(engine, going)
        for one in going:
            following = _following(one, trained)
            if following is None:
                written[one.wanted.name] = _written(one, trained)
            else:
                due[following].append(one)
    return written


def _run(engine: RolloutEngine, going: Sequence[_Going]) -> None:
    by_name = {each.wanted.name: each for each in going}
    engine.submit(
        [
            SequenceRequest(
                sequence_id=each.wanted.name,
                prompt_ids=each.wanted.prompt_ids,
                sampling=each.wanted.sampling,
                progress=each.progress,
            )
            for each in going
        ]
    )
    left = len(going)
    while left:
        for output in engine.step():
            by_name[output.sequence_id].output = output
            left -= 1


def _following(each: _Going, trained: int) -> int | None:
    """The version that continues after the answer is cut; None: none does."""
    output, parts = each.output, each.wanted.answer
    assert output is not None
    while each.part + 1 < len(parts):
        each.part += 1
        begins = round(sum(part.share for part in parts[: each.part]) * len(output.token_ids))
        if begins >= len(output.token_ids):
            return None
        each.progress = _first(output, begins)
        return trained - parts[each.part].age
    return None


def _first(output: SequenceOutput, num: int) -> SequenceProgress | None:
    if not num:
        return None
    return SequenceProgress(
        token_ids=output.token_ids[:num], logprobs=output.logprobs[:num], versions=output.versions[:num]
    )


def _written(each: _Going, trained: int) -> Written:
    output = each.output
    assert output is not None
    return Written(
        token_ids=output.token_ids,
        logprobs=output.logprobs,
        ages=tuple(trained - version for version in output.versions),
        cut=output.reason == "length",
    )
