"""The progress of a growing conversation as a message: new tokens as packed rows, the rest only after a change.

    row     4 bytes: the token's id, or ~id where the environment wrote it · 4 bytes: its log-prob
    rest    the conversation without its tokens, and how many of them belong to turns that have ended

Invariants:
- rows are append-only: a turn in progress already has the rows that it will have when it has ended;
- a conversation restored from full progress equals the original, to the last bit of a log-prob.
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


def pack_progress(
    conversation: Conversation, partial: SequenceProgress | None, named: Named, *, acknowledged: AcknowledgedProgress
) -> SampleProgress:
    """The progress that data has not acknowledged. `partial`: the turn in progress, its versions by `named`."""
    closed, turn = len(conversation.response_ids), partial or NOTHING_SAID
    since, in_turn = acknowledged.num_tokens, max(0, acknowledged.num_tokens - closed)
    versions = [*conversation.versions[since:], *map(named, turn.versions[in_turn:])]
    mark = _mark(conversation, partial)
    return SampleProgress(
        key=conversation.key,
        num_tokens=closed + len(turn.token_ids),
        runs=tuple(VersionRun(weights=weights, num_tokens=len(list(run))) for weights, run in groupby(versions)),
        state=None
        if since and mark == acknowledged.mark
        else Rest(conversation=_strip_tokens(conversation, partial), num_closed=closed),
        packed_tokens=_pack_rows(conversation, turn, since=since, in_turn=in_turn),
        since=since,
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
        )
    of_tokens = {
        "response_ids": ids[:closed],
        "logprobs": logprobs[:closed],
        "versions": versions[:closed],
        "written": (tokens[:closed] >= 0).tolist(),
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


def _strip_tokens(conversation: Conversation, partial: SequenceProgress | None) -> Conversation:
    kept = None if partial is None else replace(NOTHING_SAID, routes=partial.routes)
    bare = replace(conversation, response_ids=[], logprobs=[], versions=[], written=[], partial=kept)
    return bare.copied()


def _mark(conversation: Conversation, partial: SequenceProgress | None) -> int:
    """Rises with every turn and observation; for a mixture with every token, since its routes are always sent whole.
    Below 2^31 for a million tokens."""
    num_routes = len(conversation.routes) + (0 if partial is None else len(partial.routes))
    closed, num_messages = len(conversation.response_ids), len(conversation.turns) + len(conversation.observed)
    return (closed * 1_024 + 2 * num_messages + (partial is not None) + num_routes) % (1 << 31)
