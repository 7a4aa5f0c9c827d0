"""The batch of one replica, decoded analytically: from one event to the next in a single computation.

    steps ──▶ 0 ··· 812 ··········· 3,071 ····    a sequence that joins at step s with r tokens to write ends at s + r;
                    one ends        one ends      a heap gives the next end, a formula the time of the steps until it

Invariants:
- a step writes one token of each running sequence; no step is counted twice, and none takes less than it costs;
- every token is counted to the weights that wrote it;
- sequences that run, wait for tools or were handed over with their cache take room; none runs without room;
- an evicted sequence prefills all its tokens again before it continues.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from typing import Final

from engine.pipeline.records import SampleKey
from engine.policy.lineage import WeightsId
from engine.sim.costs.decode import DecodeCost
from engine.sim.costs.slots import SlotCost
from engine.sim.fleet.residents import Residents
from engine.sim.fleet.sequence import Sequence

# As in vLLM: the share kept free for the growth of running sequences.
KEPT_FREE: Final = 0.01


class Decoding:
    def __init__(
        self, cost: DecodeCost, *, prefill_s: float, kv_tokens: int, max_batch: int, slots: SlotCost | None = None
    ) -> None:
        """`slots`: how versions are held; None: as whole copies."""
        self._cost, self._prefill_s = cost, prefill_s
        self._all_tokens = self._kv_tokens = kv_tokens
        self._max_batch = max_batch
        self.residents = Residents(slots)
        self._heap: list[tuple[int, int, Sequence]] = []
        self._running: dict[SampleKey, Sequence] = {}
        self._waiting: deque[Sequence] = deque()
        self._away: dict[SampleKey, Sequence] = {}
        """Sequences that wait for their tools, with their cache here."""
        self._context = self._away_context = 0
        self._step = self._serial = 0
        self._at = 0.0
        """When the step in progress began; later than now while the replica is blocked."""
        # What happened so far:
        self.num_written = 0
        self.num_prefilled = 0
        self.num_evicted = 0
        self.busy_s = 0.0
        self.held_up_s = 0.0
        self.kv_token_s = 0.0

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def is_empty(self) -> bool:
        return not (self._running or self._waiting or self._away)

    @property
    def kv_used(self) -> float:
        return min(1.0, (self._context + self._away_context) / self._kv_tokens)

    def held(self) -> Iterator[Sequence]:
        yield from self._running.values()
        yield from self._waiting
        yield from self._away.values()

    def kv_by_weights(self) -> dict[WeightsId, float]:
        """The share of the room by weights, of sequences that run or wait for tools; tokens since joining included."""
        kept: dict[WeightsId, int] = {}
        for sequence in self._running.values():
            tokens = sequence.context + self._step - sequence.joined_at
            kept[sequence.weights] = kept.get(sequence.weights, 0) + tokens
        for sequence in self._away.values():
            kept[sequence.weights] = kept.get(sequence.weights, 0) + sequence.context
        return {weights: min(1.0, tokens / self._kv_tokens) for weights, tokens in kept.items()}

    # ── time ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def advance(self, now: float) -> None:
        """Counts all whole steps up to now, but none beyond the next end."""
        if now <= self._at:
            return
        batch = len(self._running)
        if not batch:
            self.kv_token_s += (now - self._at) * self._away_context
            self._at = now
            return
        steps = self._cost.steps_within(now - self._at, batch, self._context, load=self.residents.load)
        self._leap(min(steps, self._steps_to_next()))

    def next_at(self) -> float | None:
        """When the next sequence ends its turn, or room is short; None: nothing runs."""
        if not self._running:
            return None
        return self._at + self._duration(self._steps_to_next())

    def arrive(self) -> None:
        """Advances to the time that `next_at` returned."""
        self._leap(self._steps_to_next())

    def hold_up(self, now: float, seconds: float) -> None:
        if not self._running:
            self.advance(now)
        self._at += seconds
        self.held_up_s += seconds
        self.kv_token_s += seconds * (self._context + self._away_context)

    def _leap(self, steps: int) -> None:
        if steps <= 0:
            return
        seconds, batch = self._duration(steps), len(self._running)
        self.kv_token_s += seconds * (self._context + self._away_context + batch * steps / 2)
        self.busy_s += seconds
        self._at += seconds
        self._step += steps
        self._context += batch * steps
        self.num_written += batch * steps

    def _duration(self, steps: int) -> float:
        return self._cost.steps_s(steps, len(self._running), self._context, load=self.residents.load)

    def _steps_to_next(self) -> int:
        while not self._is_planned(*self._heap[0][1:]):
            heappop(self._heap)
        to_end = self._heap[0][0] - self._step
        if len(self._running) == 1 and not self._away_context:
            return to_end  # it has all the room that there is
        free = self._kv_tokens - self._context - self._away_context
        return max(0, min(to_end, free // len(self._running)))

    # ── sequences ─────────────────────────────────────────────────────────────────────────────────────────────────

    def ended(self) -> list[Sequence]:
        """Takes out the sequences whose turn has ended, and evicts others if room is short."""
        over: list[Sequence] = []
        while self._heap and self._heap[0][0] <= self._step:
            _, serial, sequence = heappop(self._heap)
            if self._is_planned(serial, sequence):
                self._stop(sequence)
                over.append(sequence)
        while self._is_short() and (len(self._running) > 1 or self._away_context):
            self._evict()
        return over

    def add(self, sequences: Iterable[Sequence], now: float) -> None:
        self._waiting.extend(sequences)
        self.admit(now)

    def admit(self, now: float) -> None:
        """Admits waiting sequences while there is room."""
        kept_free = int(self._kv_tokens * KEPT_FREE)
        while self._waiting and len(self._running) < self._max_batch:
            sequence = self._waiting[0]
            taken = self._context + self._away_context + sequence.context
            if self._running and taken + kept_free > self._kv_tokens:
                return
            self._waiting.popleft()
            self._join(sequence, now)

    def read_prompt(self, tokens: int, now: float) -> None:
        """Prefills a prompt before the sequences that share it are added with it in their cache."""
        self._read(tokens, now)

    def send_away(self, sequence: Sequence) -> None:
        """The sequence waits for its tool; its cache stays."""
        self._away[sequence.key] = sequence
        self._away_context += sequence.context if sequence.is_cached else 0

    def return_after_turn(self, sequence: Sequence, answer: int, now: float) -> None:
        """The sequence returns from its tool with the answer's tokens to prefill."""
        del self._away[sequence.key]
        if sequence.is_cached:
            self._away_context -= sequence.context
            self._read(answer, now)
        sequence.context += answer
        self.add([sequence], now)

    def take_out(self, keys: Iterable[SampleKey]) -> list[Sequence]:
        """Removes sequences with their cache, if it is here; those that wait for tools keep waiting."""
        wanted = list(keys)
        taken = [sequence for key in wanted if (sequence := self._running.get(key)) is not None]
        for sequence in taken:
            self._stop(sequence)
        for key in wanted:
            away = self._away.pop(key, None)
            if away is not None:
                self._away_context -= away.context if away.is_cached else 0
                taken.append(away)
        waits = set(wanted)
        taken += [sequence for sequence in self._waiting if sequence.key in waits]
        self._waiting = deque(sequence for sequence in self._waiting if sequence.key not in waits)
        return taken

    def install(self, weights: WeightsId, keeps: Iterable[WeightsId]) -> float:
        """Installs weights; returns the time to rebuild what is kept of older versions, whose room is taken at once."""
        seconds = self.residents.install(weights, keeps=keeps)
        self._kv_tokens = max(1, self._all_tokens - self.residents.taken_tokens)
        return seconds

    def carry_on(
        self, weights: WeightsId, now: float, *, reads_again: bool = False, of: WeightsId | None = None
    ) -> None:
        """All sequences here continue on these weights. `of`: only those on these older weights."""
        for sequence in self.held():
            if of not in (None, sequence.weights):
                continue
            if sequence.is_running:
                self._count(sequence)
                self.residents.take_row(sequence.weights)
                self.residents.add_row(weights)
            sequence.weights = weights
        if reads_again:
            for each in (*self._away.values(), *self._waiting):
                each.is_cached = False
            self._away_context = 0
            self._read(self._context, now)

    def _join(self, sequence: Sequence, now: float) -> None:
        if not self._running:
            self.advance(now)
        if not sequence.is_cached:
            self._read(sequence.context, now)
            sequence.is_cached = True
        self._serial += 1
        sequence.serial, sequence.joined_at, sequence.is_running = self._serial, self._step, True
        self._running[sequence.key] = sequence
        self.residents.add_row(sequence.weights)
        self._context += sequence.context
        heappush(self._heap, (self._step + sequence.left[0], sequence.serial, sequence))

    def _read(self, tokens: int, now: float) -> None:
        self.num_prefilled += tokens
        self.hold_up(now, tokens * self._prefill_s)

    def _is_planned(self, serial: int, sequence: Sequence) -> bool:
        """Whether the sequence has not left since. Another replica may have given it the same serial."""
        return sequence.serial == serial and self._running.get(sequence.key) is sequence

    def _stop(self, sequence: Sequence) -> None:
        del self._running[sequence.key]
        self._count(sequence)
        sequence.serial, sequence.is_running = 0, False
        self._context -= sequence.context
        self.residents.take_row(sequence.weights)

    def _count(self, sequence: Sequence) -> None:
        """Counts its tokens as if it joined now; its end stays the same."""
        sequence.write(self._step - sequence.joined_at)
        sequence.joined_at = self._step

    def _is_short(self) -> bool:
        return self._context + self._away_context + len(self._running) > self._kv_tokens

    def _evict(self) -> None:
        """Evicts sequences that wait for tools first, then the latest arrivals: they have the least to read again."""
        self.num_evicted += 1
        for away in self._away.values():
            if away.is_cached:
                away.is_cached = False
                self._away_context -= away.context
                return
        sequence = next(reversed(self._running.values()))
        self._stop(sequence)
        sequence.is_cached = False
        self._waiting.appendleft(sequence)
