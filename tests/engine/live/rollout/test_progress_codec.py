"""A conversation restored from its progress, full or incremental, equals the original."""

import random
from copy import deepcopy
from dataclasses import replace

import pytest

from engine.environments.port import Observation, Prompt, Turn
from engine.inference.port import SamplingParams, SequenceOutput, SequenceProgress
from engine.live.rollout.conversation import Conversation
from engine.live.rollout.progress_codec import pack_progress, unpack_progress
from engine.live.rollout.wording import DecodedTurn, Rendered
from engine.pipeline.data.accounts import Account
from engine.pipeline.packed import Floats
from engine.pipeline.records import AcknowledgedProgress, GroupKey, SampleKey
from engine.policy.lineage import WeightsId

KEY = SampleKey(group=GroupKey(ordinal=4), sample=1)


def named(version: int) -> WeightsId:
    return WeightsId(0, version)


class Growing:
    """A conversation of random turns and observations, as its replica holds it."""

    def __init__(self, seed: int, *, routes: bool = False) -> None:
        self.chance, self.routes = random.Random(seed), routes
        self.conversation = Conversation(
            key=KEY,
            prompt=Prompt(split="train", ordinal=4, text="ask", facts={"answer": 7}),
            prompt_ids=(1, 2, 3),
            sampling=SamplingParams(max_new_tokens=10_000, temperature=1.0, seed=0),
            weights=named(0),
        )
        self.partial: SequenceProgress | None = SequenceProgress(token_ids=(), logprobs=(), versions=())
        self.version = 0

    def grow(self) -> None:
        chance = self.chance
        self.version += chance.random() < 0.1
        if self.partial is None:
            self.conversation.observed.append(Observation(text="seen"))
            ids = tuple(chance.randrange(9) for _ in range(chance.randrange(4)))
            self.conversation.observe(Rendered(ids=ids, text="seen", starts_segment=chance.random() < 0.3))
            self.partial = SequenceProgress(token_ids=(), logprobs=(), versions=())
        elif self.partial.token_ids and chance.random() < 0.2:
            turn = self.partial
            output = SequenceOutput(
                sequence_id="",
                token_ids=turn.token_ids,
                logprobs=turn.logprobs,
                versions=turn.versions,
                reason="stop",
                routes=turn.routes,
            )
            self.conversation.add_turn(
                output, DecodedTurn(turn=Turn(text="packed_tokens"), exact_text="packed_tokens."), named
            )
            self.partial = None
        else:
            logprob = Floats.of([-chance.random()])[0]
            self.partial = replace(
                self.partial,
                token_ids=(*self.partial.token_ids, chance.randrange(150_000)),
                logprobs=(*self.partial.logprobs, logprob),
                versions=(*self.partial.versions, self.version),
                routes=self.partial.routes + (b"route" if self.routes else b""),
            )

    def whole(self) -> Conversation:
        """As another replica would resume it."""
        return replace(self.conversation, partial=self.partial)


@pytest.mark.parametrize("routes", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_incremental_progress_restores_the_same_conversation(seed: int, routes: bool) -> None:
    growing = Growing(seed, routes=routes)
    account: Account | None = None
    acknowledged = AcknowledgedProgress(key=KEY, sample_run=1)
    for _ in range(120):
        growing.grow()
        if growing.chance.random() < 0.6:
            continue
        piece = pack_progress(growing.conversation, growing.partial, named, acknowledged=acknowledged)
        if account is None:
            account = Account(piece, reporter=(0, 0))
        else:
            account.take(piece)
        acknowledged = AcknowledgedProgress(key=KEY, sample_run=1, num_tokens=piece.num_tokens, mark=piece.mark)
        progress = account.progress(KEY)
        assert unpack_progress(progress) == growing.whole()
        assert sum(run.num_tokens for run in progress.runs) == progress.num_tokens


def test_token_of_a_growing_turn_costs_eight_bytes() -> None:
    growing = Growing(1)
    growing.grow()
    first = pack_progress(
        growing.conversation, growing.partial, named, acknowledged=AcknowledgedProgress(key=KEY, sample_run=1)
    )
    growing.grow()
    acknowledged = AcknowledgedProgress(key=KEY, sample_run=1, num_tokens=first.num_tokens, mark=first.mark)
    second = pack_progress(growing.conversation, growing.partial, named, acknowledged=acknowledged)
    assert (second.state, len(second.packed_tokens)) == (None, 8 * (second.num_tokens - first.num_tokens))
    assert second.num_tokens > first.num_tokens


def test_snapshot_does_not_change_with_the_conversation() -> None:
    growing = Growing(2)
    growing.grow()
    piece = pack_progress(
        growing.conversation, growing.partial, named, acknowledged=AcknowledgedProgress(key=KEY, sample_run=1)
    )
    before = deepcopy(growing.whole())
    for _ in range(50):
        growing.grow()
    assert unpack_progress(piece) == before
