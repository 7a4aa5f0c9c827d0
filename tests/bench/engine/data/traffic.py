"""The traffic between data and many replicas: real brains, real messages and a real log, words from a book.

Invariants:
- messages reach data as pickles, as with Ray; only the time of data's own side is counted;
- samples share words, so that the replicas' side takes little memory; data holds its own copies.
"""

import pickle
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from engine.environments.port import Prompt
from engine.inference.port import SamplingParams, SequenceProgress
from engine.live.data.actor import DataBody
from engine.live.data.journal_file import JournalFile
from engine.live.rollout.conversation import Conversation
from engine.live.rollout.progress_codec import pack_progress
from engine.pipeline.data.brain import DataBrain
from engine.pipeline.effects import Effect, InstallWeights, ReportProgress, Send, StartSequences, StopSequences
from engine.pipeline.messages.addresses import DATA, TRAINER
from engine.pipeline.messages.message import Message, Tick
from engine.pipeline.messages.to_data import BatchWanted
from engine.pipeline.messages.to_rollout import (
    ProgressReported,
    TrajectoriesEnded,
    WeightsInstalled,
    WeightsServed,
)
from engine.pipeline.messages.to_trainer import BatchReady
from engine.pipeline.plan import STREAM_EVERY_S, Plan
from engine.pipeline.records import AcknowledgedProgress, SampleKey, SampleProgress, Trajectory
from engine.pipeline.rollout.brain import RolloutBrain
from engine.policy.lineage import WeightsId
from engine.policy.schedule import PRESETS
from engine.weights.port import WeightManifest
from tests.bench.engine.data.book import PROMPT_LENGTH, Book

Made = TypeVar("Made")

WEIGHTS: Final = WeightsId(0, 0)
SAMPLING: Final = SamplingParams(max_new_tokens=1 << 30, temperature=1.0, seed=0)


@dataclass(slots=True)
class Growing:
    key: SampleKey
    at: int
    """The position in the book."""
    num_tokens: int


class Replica:
    """A real brain over samples that grow on request."""

    def __init__(self, plan: Plan, number: int, book: Book, length: int) -> None:
        self.brain = RolloutBrain(plan, replica=number, incarnation=0)
        self._book, self._length, self._max_batch = book, length, plan.max_batch
        self._samples: dict[SampleKey, Growing] = {}
        self._num_begun = number * 7
        self._num_fresh = 0
        """Of those that are met as they grow."""

    def perform(self, effect: Effect) -> list[Message]:
        match effect:
            case InstallWeights():
                return [WeightsInstalled(weights=effect.manifest.weights)]
            case StartSequences():
                for task in effect.tasks:
                    for sample in task.samples:
                        self._begin(SampleKey(group=task.key, sample=sample))
            case StopSequences():
                raise AssertionError("no sample is stopped here")
            case ReportProgress():
                known = [acknowledged for acknowledged in effect.acknowledged if acknowledged.key in self._samples]
                return [ProgressReported(progress=tuple(map(self._progress_of, known)))]
        return []

    def grow(self, num_tokens: int) -> tuple[Message | None, int]:
        """Grows the samples; returns those that have ended and the number of new tokens."""
        ended, grown = [], 0
        for each in list(self._samples.values()):
            grown += min(num_tokens, self._length - each.num_tokens)
            each.num_tokens = min(each.num_tokens + num_tokens, self._length)
            if each.num_tokens == self._length:
                del self._samples[each.key]
                ended.append(self._ended(each))
        return (TrajectoriesEnded(trajectories=tuple(ended)) if ended else None), grown

    @property
    def num_held(self) -> int:
        return sum(each.num_tokens for each in self._samples.values())

    def _begin(self, key: SampleKey) -> None:
        self._num_begun += 1
        at = self._num_begun * 8_191 % (len(self._book.words) - self._length)
        age = 0
        if key.group.evaluation is not None:
            age = self._length - 1
        elif self._num_fresh < self._max_batch:
            self._num_fresh += 1
            age = (key.group.ordinal * 97 + key.sample * 31) % self._length
        self._samples[key] = Growing(key, at, age)

    def _progress_of(self, request: AcknowledgedProgress) -> SampleProgress:
        each = self._samples[request.key]
        book, part = self._book, slice(each.at, each.at + each.num_tokens)
        partial_turn = SequenceProgress(
            token_ids=book.id_list[part], logprobs=book.logprob_list[part], versions=(0,) * each.num_tokens
        )
        return pack_progress(self._conversation(each.key), partial_turn, lambda version: WEIGHTS, acknowledged=request)

    def _conversation(self, key: SampleKey) -> Conversation:
        prompt = Prompt(
            split="train", ordinal=key.group.ordinal, text="".join(self._book.words[:PROMPT_LENGTH]), facts={}
        )
        ids = self._book.id_list[:PROMPT_LENGTH]
        return Conversation(key=key, prompt=prompt, prompt_ids=ids, sampling=SAMPLING, weights=WEIGHTS)

    def _ended(self, each: Growing) -> Trajectory:
        return Trajectory(
            key=each.key,
            weights=WEIGHTS,
            reward=float(each.key.sample % 2),
            num_tokens=each.num_tokens,
            content=self._book.content(each.at, each.num_tokens),
        )


class Traffic:
    def __init__(self, *, folder: Path, num_replicas: int, num_samples: int, length: int, streams: bool) -> None:
        """One group of `num_samples` on each replica at a time."""
        plan = Plan(
            schedule=replace(PRESETS["laminar"], max_staleness=None),
            steps=1 << 30,
            groups_per_step=max(1, num_replicas // 2),
            group_size=num_samples,
            checkpoint_every=20,
            evaluation_prompts=1,
            evaluate_every=0,
            max_batch=num_samples,
            weight_slots=2,
            stream_every_s=STREAM_EVERY_S if streams else 0.0,
        )
        self._folder, self._plan, book = folder, plan, Book()
        self._journal = JournalFile(folder)
        self._body = DataBody(DataBrain(plan), self._journal)
        self._replicas = [Replica(plan, number, book, length) for number in range(num_replicas)]
        self._now = 0.0
        self._step = 1
        self._written = _Written(folder)
        self.count_anew()

    def count_anew(self) -> None:
        self.seconds = dict.fromkeys(("received", "decided", "logged", "snapshots", "sent"), 0.0)
        self.tokens = self.num_ended = self.bytes_received = 0
        self.longest_s = 0.0
        self._written.look()
        self._written.num_bytes = 0

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / sum(self.seconds.values())

    @property
    def tokens_held(self) -> int:
        return sum(replica.num_held for replica in self._replicas)

    @property
    def log_bytes(self) -> int:
        return self._written.num_bytes

    @property
    def memory_bytes(self) -> int:
        """The Python memory of data's unfinished samples, measured by making a copy."""
        books = self._body.brain.state.training
        known = [group.task().progress for group in books]
        before = _resident_bytes()
        copied = _opened(_packed(known))
        after = _resident_bytes()
        del copied
        return max(0, after - before)

    def begin(self) -> None:
        self._send_to_data(BatchWanted(step=1))
        manifest = WeightManifest(weights=WEIGHTS, num_bytes=0, chunk_bytes=1, identity="", chunk_hashes=(), tensors=())
        for replica in self._replicas:
            self._send_to_replica(replica, WeightsServed(manifest=manifest, payload=None))
        for _ in range(3):  # the evaluation before training, then every replica's first group
            self.round(1)

    def round(self, num_tokens: int) -> None:
        """One second, in which every sample grows by this number of tokens."""
        self._now += STREAM_EVERY_S
        for replica in self._replicas:
            ended, grown = replica.grow(num_tokens)
            self.tokens += grown
            if ended is not None:
                self.num_ended += len(ended.trajectories)  # type: ignore[union-attr]
                self._send_to_replica(replica, ended)
            self._send_to_replica(replica, Tick())
        self._send_to_data(Tick())

    def close(self) -> None:
        self._timed("logged", self._journal.close)
        self._written.look()

    # ── receivers ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _send_to_replica(self, replica: Replica, message: Message) -> None:
        waiting = deque([message])
        while waiting:
            for effect in replica.brain.handle(waiting.popleft(), self._now):
                if not isinstance(effect, Send):
                    waiting.extend(replica.perform(effect))
                elif effect.to == DATA:
                    self._send_to_data(effect.message)

    def _send_to_data(self, message: Message) -> None:
        carried = _packed(message)
        self.bytes_received += len(carried)
        acknowledged: Message = self._timed("received", partial(_opened, carried))
        self._decide(acknowledged)
        while self._body.is_busy:
            for kept in self._timed("logged", self._body.work):
                self._decide(kept)
            self._time_snapshot()
            self._written.look()

    def _decide(self, message: Message) -> None:
        for effect in self._timed("decided", partial(self._body.brain.handle, message, self._now)):
            if not isinstance(effect, Send):
                self._body.perform(effect)
                continue
            carried = self._timed("sent", partial(_packed, effect.message))
            if effect.to == TRAINER:
                self._train(effect.message)
            elif effect.to.kind == "rollout":
                self._send_to_replica(self._replicas[effect.to.number], _opened(carried))

    def _train(self, message: Message) -> None:
        assert isinstance(message, BatchReady)
        kept = message.step // self._plan.checkpoint_every * self._plan.checkpoint_every
        self._send_to_data(BatchWanted(step=message.step + 1, checkpointed=kept))

    def _timed(self, part: str, work: Callable[[], Made]) -> Made:
        started, began = time.thread_time(), time.perf_counter()
        made = work()
        self.seconds[part] += time.thread_time() - started
        self.longest_s = max(self.longest_s, time.perf_counter() - began)
        return made

    def _time_snapshot(self) -> None:
        """The CPU time of a snapshot that was begun, by waiting for it: data itself does not."""
        before, of_this_thread = time.process_time(), time.thread_time()
        self._journal.finish_snapshot()
        this_thread_s = time.thread_time() - of_this_thread
        self.seconds["snapshots"] += max(0.0, time.process_time() - before - this_thread_s)


@dataclass(slots=True)
class _Written:
    """Counts the bytes written into a folder's files, including deleted ones."""

    folder: Path
    num_bytes: int = 0
    _sizes: dict[str, int] = field(default_factory=dict)

    def look(self) -> None:
        sizes = {file.name: file.stat().st_size for file in self.folder.iterdir()}
        self.num_bytes += sum(size - self._sizes.get(name, 0) for name, size in sizes.items())
        self._sizes = sizes


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4_096


def _packed(said: object) -> bytes:
    return pickle.dumps(said, protocol=5)


def _opened(carried: bytes) -> Any:
    return pickle.loads(carried)  # noqa: S301 - it was packed here
