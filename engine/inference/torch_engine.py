"""A rollout engine in plain torch: continuous batching over a paged KV cache, weights swapped in place.

A step is schedule, prefill, decode, collect: waiting sequences get blocks, a bounded number of prompt tokens is
prefilled, one forward decodes a token for every row, ended rows are removed. Prefill covers a prompt up to its last
token, which is decoded like any other, so sampling happens in one place.

Invariants (in addition to the port's):
- a sequence's tokens follow from its prompt, its sampling parameters and the weights, never from the rest of the batch;
- `install` changes every tensor or, if one does not fit, none;
- only the decoding of rows (engine/inference/rows) depends on the device, and on a CPU the computation of products
  (engine/inference/cpu_products.py).
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal

import torch

from engine.inference.block_manager import BLOCK_TOKENS, BlockManager, BlockTable
from engine.inference.cpu_products import lay_out, products_for
from engine.inference.page_store import PageStore, copied
from engine.inference.port import (
    NOTHING_SAID,
    OWN_ROOM,
    EngineView,
    KvPages,
    KvRoom,
    SequenceOutput,
    SequenceProgress,
    SequenceRequest,
)
from engine.inference.prefill import chunk_batch
from engine.inference.probing import row_logprobs
from engine.inference.requests import DrawKind, Limits, check_request
from engine.inference.route_pages import RoutePages
from engine.inference.rows.banded import BandedRows
from engine.inference.rows.paged import PagedRows
from engine.inference.rows.port import Decoded, DecodeRows
from engine.inference.scheduler import ComputedBlocks, LiveSequence, Plan, RowMove, Scheduler
from engine.inference.stop import Decoder, StopWatcher
from engine.models.loading import load_decoder, model_tensors, read_config
from engine.models.tokenizer import Tokenizer, read_eos_ids
from engine.process.progress import working
from engine.weights.installing import Installer
from engine.weights.port import WeightVersion

PREFILL_TOKENS: Final = 1_024  # of one step: beyond it a forward is compute-bound, so more would only delay the rows
FIRST_BLOCKS_PER_ROW: Final = 4


class TorchRolloutEngine:
    def __init__(
        self,
        model_folder: Path,
        *,
        max_batch: int,
        device: str,
        version: int = 0,
        kv_tokens: int = 0,
        prefill_tokens: int = PREFILL_TOKENS,
        layout: Literal["window", "paged"] | None = None,
        begins_empty: bool = False,
        tokenizer: Decoder | None = None,
    ) -> None:
        """`version`: of the folder's weights; with `begins_empty` they are not read. `kv_tokens`: size of the cache,
        allocated at once; 0: room for `max_batch` of the longest, allocated as needed. `layout`: None: the device's.
        `tokenizer`: for stop strings; None: the folder's, in this process."""
        config, is_on_cpu = read_config(model_folder), torch.device(device).type == "cpu"
        products = products_for(config) if is_on_cpu else None
        config = config if products is None else replace(config, dtype=products.dtype)  # the cache's too
        self._model = load_decoder(model_folder, device=device, dtype=config.dtype, leaves_empty=begins_empty)
        self._model.requires_grad_(False)
        if products is not None:
            lay_out(self._model, products)
        self._installer = Installer(model_folder, device=device, is_of_base=not begins_empty)
        self._eos_ids = frozenset(read_eos_ids(model_folder))
        self._tokenizer = tokenizer
        self._folder, self._device, self._version = model_folder, device, version
        self._num_prefilled = self._num_decoded = 0
        num_blocks = (kv_tokens or max_batch * (config.max_positions + BLOCK_TOKENS)) // BLOCK_TOKENS
        num_backed = num_blocks if kv_tokens else max_batch * FIRST_BLOCKS_PER_ROW
        self._blocks = BlockManager(num_blocks, num_backed=num_backed, version=version)
        self._scheduler = Scheduler(max_rows=max_batch, blocks=self._blocks, prefill_tokens=prefill_tokens)
        is_windowed = layout == "window" or (layout is None and is_on_cpu)
        self._store = PageStore(config, self._blocks, device=device, has_scratch=not is_windowed)
        self._routes = RoutePages(config.mixture, self._store, device=device)
        self._limits = Limits(
            vocab_size=config.vocab_size,
            max_positions=config.max_positions,
            kv_tokens=num_blocks * BLOCK_TOKENS,
            route_bytes=self._routes.token_bytes,
        )
        rows_class = BandedRows if is_windowed else PagedRows
        self._rows: DecodeRows = rows_class(
            self._model, config, self._store, self._routes, max_rows=max_batch, device=device
        )

    # The port ----------------------------------------------------------------------------------------------------

    def submit(self, requests: Sequence[SequenceRequest]) -> None:
        self._installer.check_begun()
        for request in requests:
            check_request(request, self._limits)
        self._scheduler.submit([self._make_live(request) for request in requests])

    @torch.inference_mode()
    def step(self) -> list[SequenceOutput]:
        self._follow(self._scheduler.schedule())
        if not self._scheduler.rows:
            return []
        with self._at_forward("decode", len(self._scheduler.rows)):
            order = self._rows.arrange()
            if order is not None:
                self._scheduler.arrange(order)
            decoded = self._rows.decode(self._scheduler.rows)
        return self._collect(decoded)

    @torch.inference_mode()
    def abort(self, sequence_ids: Sequence[str]) -> list[SequenceOutput]:
        gone = self._scheduler.in_flight(sequence_ids)
        self._take_routes(gone)
        self._close(self._scheduler.leave(gone))
        return [each.end("aborted") for each in gone]

    @torch.inference_mode()
    def export(
        self, sequence_ids: Sequence[str], *, leave: bool, with_kv: bool, room: KvRoom = OWN_ROOM
    ) -> list[SequenceRequest]:
        exported = self._scheduler.in_flight(sequence_ids)
        self._take_routes(exported)
        requests = [self._request_of(each, room if with_kv else None) for each in exported]
        if leave:
            self._close(self._scheduler.leave(exported))
        return requests

    @torch.no_grad()
    def install(self, weights: WeightVersion) -> None:
        self._installer.install(weights, model_tensors(self._model))
        self._version = weights.version
        self._scheduler.forget(weights.version)

    def probe(self, token_ids: Sequence[int]) -> tuple[float, ...]:
        with self._at_forward("probe", len(token_ids)):
            return row_logprobs(self._model, token_ids, device=self._device)

    def view(self) -> EngineView:
        return EngineView(
            num_running=self._scheduler.num_running,
            num_waiting=len(self._scheduler.waiting),
            kv_used=self._blocks.num_held / self._blocks.num_blocks,
            version=self._version,
            num_prefilled=self._num_prefilled,
            num_decoded=self._num_decoded,
        )

    # In and out --------------------------------------------------------------------------------------------------

    def _make_live(self, request: SequenceRequest) -> LiveSequence:
        progress = request.progress or NOTHING_SAID
        tokens = [*request.prompt_ids, *progress.token_ids]
        live = LiveSequence(
            request=request,
            max_new_tokens=self._limits.room(request),
            tokens=tokens,
            logprobs=list(progress.logprobs),
            versions=list(progress.versions),
            routes=bytearray(progress.routes),
            table=BlockTable(tokens=tokens),
            kind=DrawKind.of(request.sampling),
        )
        if progress.kv is not None and progress.kv.version == self._version:
            live.kv = self._store.fitting(progress.kv, request.sequence_id)
        if request.sampling.stop:
            self._tokenizer = self._tokenizer or Tokenizer.from_folder(self._folder)
            live.stop = StopWatcher(self._tokenizer, request.sampling.stop)
            for token in progress.token_ids:
                live.stop.completes(token)
        return live

    def _take_routes(self, leaving: Sequence[LiveSequence]) -> None:
        self._routes.take_along(
            [
                ComputedBlocks(live=live, blocks=live.table.blocks, num_tokens=self._scheduler.num_computed(live))
                for live in (leaving if self._routes.token_bytes else ())
            ]
        )

    def _request_of(self, live: LiveSequence, room: KvRoom | None) -> SequenceRequest:
        progress = SequenceProgress(
            token_ids=tuple(live.answer),
            logprobs=tuple(live.logprobs),
            versions=tuple(live.versions),
            kv=None if room is None else self._pages_of(live, room),
            routes=bytes(live.routes),
        )
        return replace(live.request, progress=progress if progress.token_ids or progress.kv else None)

    def _pages_of(self, live: LiveSequence, room: KvRoom) -> KvPages | None:
        if live.kv is not None:  # it came with the request and is not in blocks yet
            return copied(live.kv, room)
        num_tokens = self._scheduler.num_computed(live) if live.table.blocks else 0
        of_row = {row: num_tokens for row, each in enumerate(self._scheduler.rows) if each is live}
        self._rows.flush(of_row, self._scheduler.rows)
        return self._store.pages(live.table, num_tokens, version=self._version, room=room)

    def _follow(self, plan: Plan) -> None:
        if plan.preempted:
            self._close(plan.moves, num_joining=plan.num_joining)
        self._store.back()
        for brought in plan.brought:
            self._store.write(brought.live.table, brought.pages.data, brought.start, brought.end)
        self._routes.follow(plan)
        if plan.chunks:
            max_positions = self._limits.max_positions
            chunks = chunk_batch(plan.chunks, self._store, max_positions=max_positions, device=self._device)
            num_tokens = sum(each.end - each.start for each in plan.chunks)
            with self._at_forward("prefill", num_tokens):
                choose = self._routes.record(chunks.slots_n, chunks.real_n)
                self._model(chunks.ids_T, chunks.positions_T, chunks, choose)
            self._num_prefilled += num_tokens
        if plan.copied:
            sources_n, slots_n = self._store.slots_of(plan.copied)
            self._store.copy(sources_n, slots_n)
            self._routes.copy(sources_n, slots_n)
        if plan.num_joining:
            self._rows.join(self._scheduler.rows[-plan.num_joining :])

    def _close(self, moves: Sequence[RowMove], *, num_joining: int = 0) -> None:
        self._rows.close(moves, len(self._scheduler.rows) - num_joining)

    def _at_forward(self, what: str, num_tokens: int) -> AbstractContextManager[None]:
        """`num_tokens`: for a benchmark that counts them. Each layer counts as progress."""
        return working(what)

    # Collect -----------------------------------------------------------------------------------------------------

    def _collect(self, decoded: Decoded) -> list[SequenceOutput]:
        reasons: dict[int, Literal["stop", "length"]] = {}
        version, eos_ids = self._version, self._eos_ids
        for row, (live, token, logprob) in enumerate(zip(self._scheduler.rows, *decoded, strict=True)):
            live.tokens.append(token)
            live.logprobs.append(logprob)
            live.versions.append(version)
            if token in eos_ids or (live.stop is not None and live.stop.completes(token)):
                reasons[row] = "stop"
            elif len(live.logprobs) == live.max_new_tokens:
                reasons[row] = "length"
        self._num_decoded += len(decoded.tokens)
        if not reasons:
            return []
        ended = [self._scheduler.rows[row] for row in reasons]
        self._take_routes(ended)
        outputs = [live.end(reason) for live, reason in zip(ended, reasons.values(), strict=True)]
        self._keep_for_reuse(list(reasons))
        self._close(self._scheduler.retire(list(reasons)))
        return outputs

    def _keep_for_reuse(self, rows: Sequence[int]) -> None:
        """Publishes the blocks of ended rows: a later turn begins with this one's tokens."""
        live = self._scheduler.rows
        num_tokens = {row: len(live[row].tokens) - 1 for row in rows}
        new = {row: count for row, count in num_tokens.items() if self._blocks.may_publish(live[row].table, count)}
        self._rows.flush({row: count - count % BLOCK_TOKENS for row, count in new.items()}, live)
        for row, count in new.items():
            self._blocks.publish(live[row].table, count)
