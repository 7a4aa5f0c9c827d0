"""The progress of a growing conversation as a message: new tokens and routes packed, the rest only after a change.

    row       4 bytes: the token's id, or ~id where the environment wrote it · 4 bytes: its log-prob
    routes    of the first segment's tokens, as bytes (engine/models/routes.py), each from the token's first read
    rest      the conversation without both, and how many of them belong to turns that have ended

Invariants:
- rows and routes are append-only: a turn in progress already has those that it will have when it has ended;
- a conversation restored from full progress equals the original, to the last bit of a log-prob. Of a token that an
  earlier turn read, a turn in progress gets the first route, whichever it had: only the first is kept when it ends.
"""

from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

import numpy as np

from engine.inference.port import NOTHING_SAID, SequenceProgress
from engine.live.rollout.conversation import Conversation, Named
from engine.pipeline.records import AcknowledgedProgress, SampleProgress, VersionRun

_ROW: Final = np.dtype([("token", "<i4"), ("logprob", "<f4")])


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    conversation: Conversation
    num_closed: int
    """Tokens of ended turns and of observations."""
    num_closed_route_bytes: int
    """Of tokens that were read before the last turn ended."""


def pack_progress(
    conversation: Conversation, partial: SequenceProgress | None, named: Named, *, acknowledged: AcknowledgedProgress
) -> SampleProgress:
    """The progress that data has not acknowledged. `partial`: the turn in progress, its versions by `named`."""
    closed, turn = len(conversation.response_ids), partial or NOTHING_SAID
    since, in_turn = acknowledged.num_tokens, max(0, acknowledged.num_tokens - closed)
    routes_since = acknowledged.num_route_bytes if since else 0
    versions = [*conversation.versions[since:], *map(named, turn.versions[in_turn:])]
    mark, routes = _mark(conversation, partial), _new_routes(conversation, turn, since=routes_since)
    return SampleProgress(
        key=conversation.key,
        num_tokens=closed + len(turn.token_ids),
        runs=tuple(VersionRun(weights=weights, num_tokens=len(list(run))) for weights, run in groupby(versions)),
        state=None
        if since and mark == acknowledged.mark
        else Rest(
            conversation=_strip(conversation, partial, is_whole=not since),
            num_closed=closed,
            num_closed_route_bytes=len(conversation.routes),
        ),
        packed_tokens=_pack_rows(conversation, turn, since=since, in_turn=in_turn),
        packed_routes=routes,
        num_route_bytes=routes_since + len(routes),
        since=since,
        routes_since=routes_since,
        sample_run=acknowledged.sample_run,
        mark=mark,
    )


def full_progress(conversation: Conversation, partial: SequenceProgress | None, named: Named) -> SampleProgress:
    """The whole conversation, for the replica that resumes it."""
    return pack_progress(
        conversation, partial, named, acknowledged=AcknowledgedProgress(key=conversation.key, sample_run=0)
    )


def unpack_progress(progress: SampleProgress) -> Conversation | None:
    """The conversation that full progress describes; None if the sample has no prompt yet."""
    if not isinstance(progress.state, Rest):
        return None
    rest, closed = progress.state.conversation, progress.state.num_closed
    routes = progress.packed_routes
    rows = np.frombuffer(progress.packed_tokens, _ROW)
    tokens, logprobs = rows["token"], rows["logprob"].tolist()
    ids = np.where(tokens < 0, ~tokens, tokens).tolist()
    versions = [run.weights for run in progress.runs for _ in range(run.num_tokens)]
    partial = rest.partial
    if partial is not None:
        partial = replace(
            partial,
            token_ids=tuple(ids[closed:]),
            logprobs=tuple(logprobs[closed:]),
            versions=tuple(weights.version for weights in versions[closed:]),
            routes=partial.routes if rest.breaks else routes,
        )
    of_tokens = {
        "response_ids": ids[:closed],
        "logprobs": logprobs[:closed],
        "versions": versions[:closed],
        "written": (tokens[:closed] >= 0).tolist(),
        "routes": routes[: progress.state.num_closed_route_bytes],
    }
    return replace(rest.copied(), **of_tokens, partial=partial)


def _pack_rows(conversation: Conversation, turn: SequenceProgress, *, since: int, in_turn: int) -> bytes:
    rows = np.empty(len(conversation.response_ids[since:]) + len(turn.token_ids[in_turn:]), _ROW)
    tokens = np.asarray([*conversation.response_ids[since:], *turn.token_ids[in_turn:]], dtype=np.int32)
    num_in_turn = len(tokens) - len(conversation.written[since:])
    written = np.asarray([*conversation.written[since:], *[True] * num_in_turn], dtype=np.bool_)
    rows["token"] = np.where(written, tokens, ~tokens)
    rows["logprob"] = [*conversation.logprobs[since:], *turn.logprobs[in_turn:]]
    return rows.tobytes()


def _new_routes(conversation: Conversation, turn: SequenceProgress, *, since: int) -> bytes:
    """The first segment's routes from byte `since` on. Those of a later segment are never trained on."""
    closed = conversation.routes
    of_turn = b"" if conversation.breaks else turn.routes[max(since, len(closed)) :]
    return closed[since:] + of_turn


def _strip(conversation: Conversation, partial: SequenceProgress | None, *, is_whole: bool) -> Conversation:
    """Whole progress keeps the routes of a turn in a later segment: with its pages, another replica shares them."""
    kept = partial and replace(NOTHING_SAID, routes=partial.routes if is_whole and conversation.breaks else b"")
    bare = replace(conversation, response_ids=[], logprobs=[], versions=[], written=[], routes=b"", partial=kept)
    return replace(bare, acknowledged=None).copied()


def _mark(conversation: Conversation, partial: SequenceProgress | None) -> int:
    """Rises with every turn and observation. Below 2^31 for a million tokens."""
    closed, num_messages = len(conversation.response_ids), len(conversation.turns) + len(conversation.observed)
    return (closed * 1_024 + 2 * num_messages + (partial is not None)) % (1 << 31)
