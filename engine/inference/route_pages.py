"""Routes in the blocks of the cache, next to the keys and values of the same forward.

    X slots = blocks · tokens of a block    W mixtures    k experts of a token    n tokens

Sequences that share a block share its routes, so the routes of a prefix that another sequence computed are known too. A
sequence that leaves its blocks copies the routes that it does not have yet. If a token is computed again, perhaps by
other weights, its first routes stay: they produced the token after it.

Invariant: nothing is stored for a dense model.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.inference.page_store import PageStore
from engine.inference.scheduler import Brought, ComputedBlocks, LiveSequence, Plan
from engine.models.mixture import Choose, MixtureShape, freely
from engine.models.routes import TOKENS_AT_ONCE, RouteFormat


class RoutePages:
    def __init__(self, shape: MixtureShape | None, store: PageStore, *, device: str) -> None:
        self._format, self._store, self._device = RouteFormat.of(shape), store, device
        self._routes_WXk = self._allocate(0)

    @property
    def token_bytes(self) -> int:
        return self._format.token_bytes

    def follow(self, plan: Plan) -> None:
        """Call it before the step computes, and after the store has memory for all blocks."""
        self.take_along(plan.preempted)
        self._grow()
        for brought in plan.brought:
            self._bring(brought)

    def _grow(self) -> None:
        old, num_slots = self._routes_WXk, self._store.num_slots + self._store.num_spare
        if self.token_bytes and num_slots > old.shape[1]:
            self._routes_WXk = self._allocate(num_slots)
            self._routes_WXk[:, : old.shape[1]] = old

    def copy(self, sources_n: Tensor, slots_n: Tensor) -> None:
        if self.token_bytes:
            self._routes_WXk.index_copy_(1, slots_n, self._routes_WXk.index_select(1, sources_n))

    def record(self, slots_n: Tensor, real_n: Tensor | None = None) -> Choose:
        """Chooses experts freely and stores the choice in these slots. `real_n`: the rows without padding."""
        if not self.token_bytes:
            return freely

        def choose(mixture: int, logits_TX: Tensor, k: int) -> Tensor:
            chosen_Tk = freely(mixture, logits_TX, k)
            kept_nk = chosen_Tk if real_n is None else chosen_Tk.index_select(0, real_n)
            self._routes_WXk[mixture].index_copy_(0, slots_n, kept_nk.to(self._format.dtype))
            return chosen_Tk

        return choose

    def record_last(self, rows: Sequence[LiveSequence]) -> Choose:
        """The same for each row's last token."""
        if not self.token_bytes:
            return freely
        slots = [
            slot for live in rows for slot in self._store.slots(live.table, len(live.tokens) - 1, len(live.tokens))
        ]
        return self.record(self._store.on_device(slots))

    def take_along(self, computed: Sequence[ComputedBlocks]) -> None:
        """Copies the routes that the sequences do not have yet, for all sequences at once: an export of many needs a
        few tokens of each."""
        if not self.token_bytes or not computed:
            return
        new: list[tuple[LiveSequence, int]] = []
        slots: list[int] = []
        for each in computed:
            slots_of = self._store.slots_in(each.blocks, len(each.live.routes) // self.token_bytes, each.num_tokens)
            new.append((each.live, len(slots_of)))
            slots += slots_of
        packed = memoryview(b"".join(map(self._pack, torch.split(self._store.on_device(slots), TOKENS_AT_ONCE))))
        for live, num_tokens in new:
            live.routes += packed[: num_tokens * self.token_bytes]
            packed = packed[num_tokens * self.token_bytes :]

    def _pack(self, slots_n: Tensor) -> bytes:
        return self._format.packed(self._routes_WXk.index_select(1, slots_n).transpose(0, 1))

    def _bring(self, brought: Brought) -> None:
        """Writes the routes that the sequence brought; the others are marked unknown."""
        if not self.token_bytes:
            return
        start, end = brought.start * self.token_bytes, brought.end * self.token_bytes
        known_nWk = self._format.opened(brought.live.routes[start:end])
        routes_nWk = torch.full((brought.end - brought.start, *known_nWk.shape[1:]), self._format.unknown)
        routes_nWk[: len(known_nWk)] = known_nWk
        slots = self._store.on_device(self._store.slots(brought.live.table, brought.start, brought.end))
        self._routes_WXk.index_copy_(1, slots, routes_nWk.transpose(0, 1).to(self._device, self._format.dtype))

    def _allocate(self, num_slots: int) -> Tensor:
        shape = (self._format.num_mixtures, num_slots, self._format.chosen)
        return torch.empty(shape, dtype=self._format.dtype, device=self._device)
