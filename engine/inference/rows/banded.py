"""Decoding on a CPU: tensors of exactly the rows in use; keys and values in bands of windows, read in place."""

from collections.abc import Mapping, Sequence

import torch

from engine.inference.page_store import PageStore
from engine.inference.route_pages import RoutePages
from engine.inference.rows.bands import Bands
from engine.inference.rows.batch import DecodeBatch
from engine.inference.rows.port import Decoded
from engine.inference.sampling import RowSampling, sample_tokens, signed_64
from engine.inference.scheduler import LiveSequence, RowMove
from engine.models.decoder import Decoder, DecoderConfig


class BandedRows:
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
        """`config`: its dtype is that of keys and values."""
        self._model, self._routes, self._device = model, routes, device
        self._bands = Bands(config, store, max_rows=max_rows, device=device)
        self._batch: DecodeBatch | None = None  # None: no row is in use

    def join(self, joining: Sequence[LiveSequence]) -> None:
        self._bands.join(joining)
        new = DecodeBatch(
            tokens_B=torch.tensor([each.tokens[-1] for each in joining], device=self._device),
            positions_B=torch.tensor([len(each.tokens) - 1 for each in joining], device=self._device),
            seeds_B=torch.tensor([signed_64(each.request.sampling.seed) for each in joining], device=self._device),
        )
        if self._batch is None:
            self._batch = new
        else:
            self._batch.add(new)

    def close(self, moves: Sequence[RowMove], num_rows: int) -> None:
        self._bands.close(moves, num_rows)
        if self._batch is None or not num_rows:
            self._batch = None
            return
        kept = list(range(self._batch.tokens_B.shape[0]))
        for move in moves:
            kept[move.target] = kept[move.source]
        self._batch.keep(kept[:num_rows])

    def arrange(self) -> Sequence[int] | None:
        order = self._bands.arrange()
        if order is not None and self._batch is not None:
            self._batch.keep(order)
        return order

    def decode(self, rows: Sequence[LiveSequence]) -> Decoded:
        batch = self._batch
        assert batch is not None
        if batch.sampling is None:
            batch.sampling = RowSampling.of_kinds([each.kind for each in rows], self._device)
        self._bands.prepare()
        choose = self._routes.record_last(rows)
        logits_BV = self._model.logits(self._model(batch.tokens_B, batch.positions_B, self._bands, choose))
        self._bands.advance()
        batch.positions_B = batch.positions_B + 1
        batch.tokens_B, logprobs_B = sample_tokens(logits_BV, batch.sampling, batch.chance())
        return Decoded(batch.tokens_B.tolist(), logprobs_B.tolist())

    def flush(self, ends: Mapping[int, int], rows: Sequence[LiveSequence]) -> None:
        self._bands.flush(ends, rows)
