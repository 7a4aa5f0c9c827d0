"""A conversation restored from its progress, full or incremental, equals the original."""

import pickle
import random
from copy import deepcopy
from dataclasses import replace

import pytest

from engine.environments.port import Observation, Prompt, Turn
from engine.inference.port import SamplingParams, SequenceOutput, SequenceProgress
from engine.live.rollout.conversation import Conversation
from engine.live.rollout.progress_codec import full_progress, pack_progress, unpack_progress
from engine.live.rollout.wording import DecodedTurn, Rendered
from engine.pipeline.data.accounts import Account
from engine.pipeline.packed import Floats
from engine.pipeline.records import AcknowledgedProgress, GroupKey, SampleKey, SampleProgress
from engine.policy.lineage import WeightsId

KEY = SampleKey(group=GroupKey(ordinal=4), sample=1)
ROUTE_BYTES = 5


def named(version: int) -> WeightsId:
    return WeightsId(0, version)


def acknowledge(piece: SampleProgress) -> AcknowledgedProgress:
    return AcknowledgedProgress(
        key=KEY,
        sample_run=1,
        num_tokens=piece.num_tokens,
        num_route_bytes=piece.num_route_bytes,
        mark=piece.mark,
    )


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
                routes=self._routes_with_one_more(self.partial),
            )

    def _routes_with_one_more(self, turn: SequenceProgress) -> bytes:
        """The route of each token but the last. A later turn reads earlier turns again, by other weights."""
        is_later_turn = not turn.token_ids and not self.conversation.breaks
        read_again = self.chance.randbytes(len(self.conversation.routes) if is_later_turn else 0)
        return turn.routes + read_again + self.chance.randbytes(ROUTE_BYTES) if self.routes else b""

    def whole(self) -> Conversation:
        """As another replica would resume it: with the first route of each token."""
        closed, partial = self.conversation.routes, self.partial
        if partial is not None and not self.conversation.breaks:
            partial = replace(partial, routes=closed + partial.routes[len(closed) :])
        return replace(self.conversation, partial=partial)


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
        acknowledged = acknowledge(piece)
        progress = account.progress(KEY)
        restored, expected = unpack_progress(progress), growing.whole()
        assert restored is not None
        if restored.partial is not None and restored.breaks:  # a later segment's routes are never trained on
            assert expected.partial is not None
            assert expected.partial.routes.startswith(restored.partial.routes)
            expected = replace(expected, partial=replace(expected.partial, routes=restored.partial.routes))
        assert restored == expected
        assert sum(run.num_tokens for run in progress.runs) == progress.num_tokens


@pytest.mark.parametrize("seed", range(20))
def test_whole_progress_has_the_routes_of_a_later_segment(seed: int) -> None:
    growing = Growing(seed, routes=True)
    for _ in range(120):
        growing.grow()
        assert unpack_progress(full_progress(growing.conversation, growing.partial, named)) == growing.whole()


def test_reports_of_a_growing_sample_add_up_to_its_size() -> None:
    """A mixture's sample of 2,000 tokens in 100 reports: each byte is sent once."""
    num_reports, per_report, prompt = 100, 20, 3
    routes = random.Random(0).randbytes((prompt + num_reports * per_report) * ROUTE_BYTES)
    growing, sizes = Growing(3), list[int]()
    acknowledged = AcknowledgedProgress(key=KEY, sample_run=1)
    for upto in range(per_report, per_report * (num_reports + 1), per_report):
        turn = SequenceProgress(
            token_ids=tuple(range(upto)),
            logprobs=(-0.5,) * upto,
            versions=(0,) * upto,
            routes=routes[: (prompt + upto - 1) * ROUTE_BYTES],
        )
        piece = pack_progress(growing.conversation, turn, named, acknowledged=acknowledged)
        sizes.append(len(pickle.dumps(piece)))
        acknowledged = acknowledge(piece)
    whole = len(pickle.dumps(full_progress(growing.conversation, turn, named)))
    bare = len(pickle.dumps(SampleProgress(key=KEY, num_tokens=0, runs=piece.runs)))
    assert sum(sizes) <= whole + num_reports * (bare + 32), "32: for numbers above 255"
    assert max(sizes[1:]) - min(sizes[1:]) <= 32, "a report does not grow with the sample"


def test_token_of_a_growing_turn_costs_eight_bytes() -> None:
    growing = Growing(1)
    growing.grow()
    first = pack_progress(
        growing.conversation, growing.partial, named, acknowledged=AcknowledgedProgress(key=KEY, sample_run=1)
    )
    growing.grow()
    second = pack_progress(growing.conversation, growing.partial, named, acknowledged=acknowledge(first))
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
