"""Decoding on a GPU: steps of a few fixed sizes over rows on the device, keys and values read from the pages.

    B rows of a step    V vocabulary

A step has the next of 1, 2, 4, 8, … rows, so that few kinds of step have to be captured. The unused rows write to a
scratch block, and their tokens are ignored.

    host:    changes ─▶                        ─▶ tokens ─▶ which rows ended, which continue
    device:            model, draw, next inputs

The host waits for a step's tokens before it plans the next. Planning one step ahead would hide the host's time, but
cost a step's token for every row that ends, memory for that token, and an `install` or a move that waits for a step in
progress (engine/inference/decisions.md).
"""

from collections.abc import Mapping, Sequence
from functools import partial

from engine.inference.page_store import PageStore
from engine.inference.route_pages import RoutePages
from engine.inference.rows.captures import Captures
from engine.inference.rows.pages import PagedAttention, pages_for
from engine.inference.rows.port import Decoded
from engine.inference.rows.row_state import RowState
from engine.inference.sampling import sample_tokens
from engine.inference.scheduler import LiveSequence, RowMove
from engine.models.decoder import Decoder, DecoderConfig
from engine.models.mixture import asks_the_host


class PagedRows:
    def __init__(
        self,
        model: Decoder,
        config: DecoderConfig,
        store: PageStore,
        routes: RoutePages,
        *,
        max_rows: int,
        device: str,
    ) -> None:
        self._model, self._store, self._routes, self._max_rows = model, store, routes, max_rows
        self._state = RowState(max_rows=max_rows, device=device)
        self._captures = Captures(device, are_possible=not asks_the_host(config.mixture, config.width, config.dtype))
        self._open_pages = pages_for(device)

    def join(self, joining: Sequence[LiveSequence]) -> None:
        self._state.join(len(joining))

    def close(self, moves: Sequence[RowMove], num_rows: int) -> None:
        self._state.close(moves, num_rows)

    def arrange(self) -> None:
        return None

    def decode(self, rows: Sequence[LiveSequence]) -> Decoded:
        state, num_step = self._state, rows_of_a_step(len(rows), self._max_rows)
        state.follow(rows, num_step=num_step, scratch=self._store.num_slots // self._store.block_tokens)
        kind = (num_step, state.num_blocks, state.draws)
        where = (self._store.num_slots, state.blocks_RM.shape)
        self._captures.run(kind, partial(self._step, num_step), where=where)
        return state.read_tokens(len(rows))

    def _step(self, num_step: int) -> None:
        state = self._state
        positions_B, blocks_BM = state.positions_of(num_step), state.blocks_RM[:num_step, : state.num_blocks]
        attend = PagedAttention(self._store, blocks_BM, positions_B, self._open_pages)
        choose = self._routes.record(attend.written_B)
        hidden_BD = self._model(state.tokens_of(num_step), positions_B, attend, choose)
        sampling, chance_B = state.sampling_of(num_step)
        state.carry_on(*sample_tokens(self._model.logits(hidden_BD), sampling, chance_B, by_stretches=True))

    def flush(self, ends: Mapping[int, int], rows: Sequence[LiveSequence]) -> None: ...


def rows_of_a_step(num_rows: int, max_rows: int) -> int:
    """The next power of two, at most `max_rows`."""
    return min(1 << (num_rows - 1).bit_length(), max_rows)
