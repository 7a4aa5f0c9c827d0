"""The state of the decode rows on their device, at fixed addresses: a step reads and writes it there.

    R rows at most    B rows of a step    M blocks of a row's table    J positions with uniforms drawn ahead

    rows join, leave, get a block ──▶ host ──one copy──▶ device ──steps──▶ tokens, log-probs ──▶ host

Invariants:
- a step after a step of the same rows needs no data from the host, unless a row got a block;
- unused rows stay at position 0 of the scratch block, with token 0;
- the host writes its copies only after `read_tokens`, which waits for the device: no transfer is in progress then.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor

from engine.inference.rows.port import Decoded
from engine.inference.sampling import Cuts, RowSampling, signed_64, uniforms
from engine.inference.scheduler import LiveSequence, RowMove

_DRAWN_AHEAD: Final = 32  # positions; one hash over many takes as long as over one
_FIRST_BLOCKS: Final = 16

_TOKEN, _POSITION, _SEED, _IN_USE, _GREEDY, _TOP_K = range(6)
_TEMPERATURE, _TOP_P, _MIN_P = range(3)


class Draws(NamedTuple):
    """The kinds of draws among the rows of a step; steps with equal ones run the same operations."""

    drawn: bool
    """Some row draws."""
    greedy: bool
    """Some row is greedy."""
    cut: bool


class RowState:
    def __init__(self, *, max_rows: int, device: str) -> None:
        self._device, self._is_cuda = device, torch.device(device).type == "cuda"
        self._max_rows = max_rows
        self._host_numbers, self._numbers = self._both(6, max_rows, dtype=torch.int64)
        self._host_shares, self._shares = self._both(3, max_rows, dtype=torch.float32)
        self._host_outputs, self._outputs = self._both(2, max_rows, dtype=torch.int64)
        self._host_blocks_RM, self.blocks_RM = self._both(max_rows, _FIRST_BLOCKS, dtype=torch.int32)
        self._chance_RJ = torch.zeros((max_rows, _DRAWN_AHEAD), dtype=torch.float64, device=device)
        self._column_1 = torch.zeros(1, dtype=torch.int64, device=device)
        self._num_drawn = _DRAWN_AHEAD
        self._num_known: list[int] = []  # blocks of each row that are in the host's table
        self._is_stale = True
        self._scratch = -1
        self.num_blocks = 1
        """Blocks that a step reads of each table: the longest one's, rounded up to a power of two."""
        self.draws = Draws(drawn=False, greedy=True, cut=False)

    def _both(self, *shape: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        host = torch.zeros(shape, dtype=dtype, pin_memory=self._is_cuda)
        return host, torch.zeros(shape, dtype=dtype, device=self._device)

    # Before a step -----------------------------------------------------------------------------------------------

    def join(self, num_joining: int) -> None:
        self._num_known += [0] * num_joining
        self._is_stale = True

    def close(self, moves: Sequence[RowMove], num_rows: int) -> None:
        for move in moves:
            self._host_blocks_RM[move.target] = self._host_blocks_RM[move.source]
            self._num_known[move.target] = self._num_known[move.source]
        del self._num_known[num_rows:]
        self._is_stale = True

    def follow(self, rows: Sequence[LiveSequence], *, num_step: int, scratch: int) -> None:
        """Prepares a step of `num_step` rows, of which `rows` are in use. `scratch`: the block of the others."""
        has_new = self._learn_blocks(rows)
        if self._is_stale or scratch != self._scratch:
            self._host_blocks_RM[len(rows) : num_step, 0] = scratch
            self._scratch, has_new = scratch, True
        if has_new:
            self.blocks_RM[:num_step].copy_(self._host_blocks_RM[:num_step], non_blocking=True)
        if self._is_stale:
            self._fill(rows)
            self._numbers.copy_(self._host_numbers, non_blocking=True)
            self._shares.copy_(self._host_shares, non_blocking=True)
        if self.draws.drawn and (self._is_stale or self._num_drawn == _DRAWN_AHEAD):
            self._draw_ahead()
        self._is_stale = False
        self._num_drawn += 1

    def _learn_blocks(self, rows: Sequence[LiveSequence]) -> bool:
        longest = max(len(each.table.blocks) for each in rows)
        self.num_blocks = 1 << (longest - 1).bit_length()
        if longest > self.blocks_RM.shape[1]:
            known_RM = self._host_blocks_RM
            self._host_blocks_RM, self.blocks_RM = self._both(self._max_rows, self.num_blocks, dtype=torch.int32)
            self._host_blocks_RM[:, : known_RM.shape[1]] = known_RM
        has_new, blocks_RM = False, self._host_blocks_RM.numpy()
        for row, (each, known) in enumerate(zip(rows, self._num_known, strict=True)):
            blocks = each.table.blocks
            if known < len(blocks):
                blocks_RM[row, known : len(blocks)] = blocks[known:]
                self._num_known[row], has_new = len(blocks), True
        return has_new

    def _fill(self, rows: Sequence[LiveSequence]) -> None:
        num_rows, kinds = len(rows), [each.kind for each in rows]
        numbers, shares = self._host_numbers.numpy(), self._host_shares.numpy()
        numbers[:, num_rows:], shares[:, num_rows:] = 0, 1.0
        numbers[_TOKEN, :num_rows] = [each.tokens[-1] for each in rows]
        numbers[_POSITION, :num_rows] = [len(each.tokens) - 1 for each in rows]
        numbers[_SEED, :num_rows] = [signed_64(each.request.sampling.seed) for each in rows]
        numbers[_IN_USE, :num_rows] = 1
        numbers[_GREEDY, :num_rows] = [kind.temperature == 0.0 for kind in kinds]
        numbers[_TOP_K, :num_rows] = [kind.top_k for kind in kinds]
        shares[_TEMPERATURE, :num_rows] = [kind.temperature or 1.0 for kind in kinds]
        shares[_TOP_P, :num_rows] = [kind.top_p for kind in kinds]
        shares[_MIN_P, :num_rows] = [kind.min_p for kind in kinds]
        self.draws = Draws(
            drawn=any(kind.temperature for kind in kinds),
            greedy=any(not kind.temperature for kind in kinds),
            cut=any(kind.temperature and (kind.top_k or kind.top_p < 1.0 or kind.min_p) for kind in kinds),
        )

    def _draw_ahead(self) -> None:
        ahead_J = torch.arange(1, 1 + _DRAWN_AHEAD, device=self._device)
        seeds_R1, positions_R1 = self._numbers[_SEED].unsqueeze(1), self._numbers[_POSITION].unsqueeze(1)
        self._chance_RJ.copy_(uniforms(seeds_R1, positions_R1 + ahead_J))
        self._column_1.zero_()
        self._num_drawn = 0

    # Within a step -----------------------------------------------------------------------------------------------

    def tokens_of(self, num_step: int) -> Tensor:
        return self._numbers[_TOKEN, :num_step]

    def positions_of(self, num_step: int) -> Tensor:
        return self._numbers[_POSITION, :num_step]

    def sampling_of(self, num_step: int) -> tuple[RowSampling, Tensor | None]:
        """The sampling parameters, and a uniform for each row's token; None: all rows are greedy."""
        draws, numbers, shares_B1 = self.draws, self._numbers[:, :num_step], self._shares[:, :num_step].unsqueeze(-1)
        if not draws.drawn:
            return RowSampling(temperatures_B1=None, is_greedy_B=None, cuts=None), None
        cuts = None
        if draws.cut:
            top_k_B1 = numbers[_TOP_K].unsqueeze(-1)
            cuts = Cuts(top_k_B1=top_k_B1, top_p_B1=shares_B1[_TOP_P], min_p_B1=shares_B1[_MIN_P])
        is_greedy_B = numbers[_GREEDY] != 0 if draws.greedy else None
        sampling = RowSampling(temperatures_B1=shares_B1[_TEMPERATURE], is_greedy_B=is_greedy_B, cuts=cuts)
        return sampling, self._chance_RJ[:num_step].index_select(1, self._column_1).squeeze(1)

    def carry_on(self, tokens_B: Tensor, logprobs_B: Tensor) -> None:
        numbers, num_step = self._numbers, len(tokens_B)
        self._outputs[0, :num_step] = tokens_B
        self._outputs[1, :num_step] = logprobs_B.double().view(torch.int64)
        numbers[_TOKEN, :num_step] = tokens_B * numbers[_IN_USE, :num_step]
        numbers[_POSITION] += numbers[_IN_USE]
        self._column_1 += 1

    # After it ----------------------------------------------------------------------------------------------------

    def read_tokens(self, num_rows: int) -> Decoded:
        self._host_outputs.copy_(self._outputs, non_blocking=True)
        if self._is_cuda:
            torch.cuda.current_stream().synchronize()
        tokens_R, logprobs_R = self._host_outputs[0].numpy(), self._host_outputs[1].view(torch.float64).numpy()
        return Decoded(tokens_R[:num_rows].tolist(), logprobs_R[:num_rows].tolist())
