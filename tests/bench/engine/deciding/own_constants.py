"""This processor's time for each piece of a replica's work, measured outside any schedule.

    step      seconds by rows, at a short context, and per further token of context
    prefill   seconds per pass, and per token
    install   seconds per install
    move      seconds per token

Invariant: medians of this thread's own seconds, of an engine that does nothing else meanwhile.
"""

import random
import statistics
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Final

from engine.inference.port import SamplingParams, SequenceRequest
from engine.policy.lineage import WeightsId
from engine.sim.recorded.facts import Decoded, Observations
from tests.bench.engine.deciding.engine import Counted, CountingEngine
from tests.bench.engine.deciding.machine import VOCABULARY, Machine

NUM_STEPS: Final = 9
"""Steps measured for one figure."""
NUM_INSTALLS: Final = 5
SHORT: Final = 16
"""Tokens of a short prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnConstants:
    rows: tuple[int, ...]
    step_s: tuple[float, ...]
    """Seconds by number of rows, with a short context."""
    short_context: int
    """Tokens that each of those rows read."""
    context_token_s: float
    pass_s: float
    prefill_token_s: float
    install_s: float
    move_token_s: float
    observations: Observations
    """The same measurements, in the form of a live run's facts."""

    def terms(self, counted: Counted) -> dict[str, float]:
        """Seconds of each."""
        beyond = counted.context - self.short_context * counted.num_decoded
        return {
            "steps": sum(self._step_s(rows) for rows, _ in counted.steps),
            "context": max(0, beyond) * self.context_token_s,
            "prefill": len(counted.prefilled) * self.pass_s + counted.num_prefilled * self.prefill_token_s,
            "installs": counted.installs * self.install_s,
            "moves": counted.moved * self.move_token_s,
        }

    def _step_s(self, rows: int) -> float:
        """Interpolates linearly between measured numbers of rows."""
        at = min(max(1, bisect_left(self.rows, rows)), len(self.rows) - 1)
        low, high = self.rows[at - 1], self.rows[at]
        share = (rows - low) / (high - low)
        return self.step_s[at - 1] * (1 - share) + self.step_s[at] * share


def measure_own(machine: Machine, *, longest: int) -> OwnConstants:
    """`longest`: tokens of a prompt."""
    engine, seen = machine.engine(), Observations(num_parameters=int(machine.model.num_weights))
    rows = _powers(machine.max_batch)
    _steps(engine, num_rows=2, prompt=SHORT)  # pages, caches, the way of products
    short = [_steps(engine, num_rows=each, prompt=SHORT, seen=seen) for each in rows]
    long = _steps(engine, num_rows=rows[-1], prompt=longest, seen=seen)
    of_short, of_long = (_reading_s(engine, tokens, seen) for tokens in (SHORT, longest))
    token_s = max(0.0, (of_long - of_short) / (longest - SHORT))
    beyond = rows[-1] * (longest - SHORT)
    return OwnConstants(
        rows=rows,
        step_s=tuple(short),
        short_context=SHORT + NUM_STEPS // 2 + 2,
        context_token_s=max(0.0, (long - short[-1]) / beyond),
        pass_s=max(0.0, of_short - SHORT * token_s),
        prefill_token_s=token_s,
        install_s=_install_s(engine, machine, seen),
        move_token_s=_move_s(engine, longest) / longest,
        observations=seen,
    )


def _powers(most: int) -> tuple[int, ...]:
    return tuple(sorted({2**power for power in range(most.bit_length()) if 2**power < most} | {most}))


def _steps(engine: CountingEngine, *, num_rows: int, prompt: int, seen: Observations | None = None) -> float:
    """The median time of a step with this number of rows. The very first step prefills the prompts."""
    names = _submitted(engine, num_rows, prompt=prompt)
    while engine.view().num_waiting or engine.view().num_running < num_rows:
        engine.step()
    engine.step()
    seconds = [_own_seconds(engine.step) for _ in range(NUM_STEPS)]
    engine.abort(names)
    if seen is not None:
        seen.decoded.append(
            Decoded(seconds=sum(seconds), num_steps=NUM_STEPS, num_tokens=NUM_STEPS * num_rows, num_prefilled=0)
        )
    return statistics.median(seconds)


def _reading_s(engine: CountingEngine, prompt: int, seen: Observations) -> float:
    """The prefill time of one prompt: its first step prefills and decodes a token, its second only decodes."""
    seconds = []
    for _ in range(NUM_INSTALLS):
        names = _submitted(engine, 1, prompt=prompt)
        with_reading, alone = _own_seconds(engine.step), _own_seconds(engine.step)
        engine.abort(names)
        seconds.append(with_reading - alone)
        seen.decoded.append(Decoded(seconds=with_reading, num_steps=1, num_tokens=1, num_prefilled=prompt - 1))
    return statistics.median(seconds)


def _install_s(engine: CountingEngine, machine: Machine, seen: Observations) -> float:
    versions = [machine.version(WeightsId(0, at)) for at in range(1, NUM_INSTALLS + 1)]
    found = [_own_seconds(partial(engine.install, version)) for version in versions]
    seen.installs_s += found
    return statistics.median(found)


def _move_s(engine: CountingEngine, prompt: int) -> float:
    """Out of an engine and in again."""

    def out_and_in(names: Sequence[str]) -> None:
        engine.submit(engine.export(names, leave=True, with_kv=True))
        engine.step()

    found = []
    for _ in range(NUM_INSTALLS):
        names = _submitted(engine, 1, prompt=prompt)
        engine.step()
        alone = _own_seconds(engine.step)
        found.append(_own_seconds(partial(out_and_in, names)) - alone)
        engine.abort(names)
    return max(0.0, statistics.median(found))


_NUMBERS: Final = count()


def _submitted(engine: CountingEngine, num: int, *, prompt: int) -> list[str]:
    """Prompts that no engine has seen."""
    names = []
    for _ in range(num):
        number = next(_NUMBERS)
        chance = random.Random(f"apart/{number}")
        request = SequenceRequest(
            sequence_id=f"apart/{number}",
            prompt_ids=tuple(chance.randrange(3, VOCABULARY) for _ in range(prompt)),
            sampling=SamplingParams(max_new_tokens=NUM_STEPS + 8, temperature=1.0, seed=number),
        )
        engine.submit([request])
        names.append(request.sequence_id)
    return names


def _own_seconds(piece: Callable[[], object]) -> float:
    started = time.thread_time()
    piece()
    return time.thread_time() - started
