"""A rollout engine in plain torch: continuous batching over rows of one KV cache, weights swapped in place.

A step is schedule, run, postprocess: free rows take waiting prompts, one forward decodes a token for every row,
rows that ended are closed up. A prompt is prefilled up to its last token; that one is decoded like any other, so
sampling happens in one place.

    B rows in use    V vocabulary

Invariants (beside the port's):
- a sequence's tokens follow from its prompt, its sampling parameters and the weights, never from the batch around it;
- `install` changes every tensor or, where one does not fit, none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import torch
from torch import Tensor

from engine.inference.kv_cache import DecodeAttention, KvCache, PrefillAttention
from engine.inference.port import EngineView, SequenceOutput, SequenceRequest
from engine.inference.sampling import sample_tokens, signed_64, uniforms
from engine.inference.scheduler import LiveSequence, Scheduler
from engine.models.loading import load_decoder, model_tensors
from engine.models.packing import lay_out, pack, split_by_tokens
from engine.models.tokenizer import read_eos_ids
from engine.weights.port import WeightVersion
from engine.weights.snapshot import map_weights

PREFILL_TOKENS: Final = 8_192  # bounds the memory of one prefill; long prompts go one by one


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRows:
    """What a step needs of each row, on the device."""

    last_tokens_B: Tensor
    positions_B: Tensor
    seeds_B: Tensor
    temperatures_B: Tensor


class TorchRolloutEngine:
    def __init__(self, model_folder: Path, *, max_batch: int, device: str, version: int = 0) -> None:
        """`version`: the one that the folder's weights are."""
        self._model = load_decoder(model_folder, device=device).requires_grad_(False)
        self._eos_ids = frozenset(read_eos_ids(model_folder))
        self._device = device
        self._max_batch = max_batch
        self._version = version
        self._scheduler = Scheduler(max_batch)
        self._cache = KvCache(self._model.config, num_rows=max_batch, device=device)
        self._rows: BatchRows | None = None  # None: who has which row has changed

    # The port ----------------------------------------------------------------------------------------------------

    def submit(self, requests: Sequence[SequenceRequest]) -> None:
        """All or none."""
        self._scheduler.submit([self._live(request) for request in requests])

    @torch.inference_mode()
    def step(self) -> list[SequenceOutput]:
        self._start_waiting()
        if not self._scheduler.rows:
            return []
        tokens_B, logprobs_B = self._decode()
        return self._collect(tokens_B.tolist(), logprobs_B.tolist())

    @torch.inference_mode()
    def abort(self, sequence_ids: Sequence[str]) -> list[SequenceOutput]:
        """Ids that are not in flight (any more) are passed over: their output has been handed out."""
        wanted = set(sequence_ids)
        ended = self._scheduler.withdraw(wanted)
        rows = [row for row, each in enumerate(self._scheduler.rows) if each.request.sequence_id in wanted]
        ended += [self._scheduler.rows[row] for row in rows]
        self._retire(rows)
        return [each.end("aborted") for each in ended]

    @torch.no_grad()
    def install(self, weights: WeightVersion) -> None:
        """In place and without waiting: what is in flight goes on with its KV cache as it is."""
        own = model_tensors(self._model)
        new = map_weights(weights)
        differing = own.keys() ^ new.keys()
        differing |= {name for name in own.keys() & new.keys() if own[name].shape != new[name].shape}
        if differing:
            raise ValueError(f"version {weights.version}: not of this model: {', '.join(sorted(differing)[:5])}")
        for name, tensor in own.items():
            tensor.copy_(new[name])
        self._version = weights.version

    def view(self) -> EngineView:
        rows = self._scheduler.rows
        capacity = self._max_batch * self._model.config.max_positions
        return EngineView(
            num_running=len(rows),
            num_waiting=len(self._scheduler.waiting),
            kv_used=sum(each.num_tokens for each in rows) / capacity,
            version=self._version,
        )

    # Schedule ----------------------------------------------------------------------------------------------------

    def _live(self, request: SequenceRequest) -> LiveSequence:
        config, sampling, prompt = self._model.config, request.sampling, request.prompt_ids
        room = config.max_positions - len(prompt)
        if not prompt or room < 1:
            raise ValueError(
                f"prompt_ids of {request.sequence_id!r}: from 1 to {config.max_positions - 1} tokens, got {len(prompt)}"
            )
        if not 0 <= min(prompt) <= max(prompt) < config.vocab_size:
            raise ValueError(f"prompt_ids of {request.sequence_id!r}: each from 0 to {config.vocab_size - 1}")
        if sampling.max_new_tokens < 1 or not 0.0 <= sampling.temperature < float("inf"):
            raise ValueError(f"sampling of {request.sequence_id!r}: at least one token and a temperature of 0 or more")
        return LiveSequence(request=request, max_new_tokens=min(sampling.max_new_tokens, room))

    def _start_waiting(self) -> None:
        new_rows = self._scheduler.admit()
        if not new_rows:
            return
        self._rows = None
        prompts = [self._scheduler.rows[row].request.prompt_ids[:-1] for row in new_rows]
        self._cache.reserve(max(map(len, prompts)))
        rectangles = [one for one in lay_out(list(map(len, prompts)), max_tokens=PREFILL_TOKENS) if one.width]
        for some in split_by_tokens(rectangles, max_tokens=PREFILL_TOKENS):
            packed = pack(prompts, some, self._device)
            self._model(packed.ids_T, packed.positions_T, PrefillAttention(self._cache, some, new_rows.start))

    # Run ---------------------------------------------------------------------------------------------------------

    def _decode(self) -> tuple[Tensor, Tensor]:
        rows = self._rows or self._read_rows()
        num_positions = max(each.num_tokens for each in self._scheduler.rows)
        self._cache.reserve(num_positions)
        attend = DecodeAttention(self._cache, rows.positions_B, num_positions, self._model.config.num_kv_heads)
        logits_BV = self._model.logits(self._model(rows.last_tokens_B, rows.positions_B, attend))
        next_positions_B = rows.positions_B + 1
        tokens_B, logprobs_B = sample_tokens(logits_BV, rows.temperatures_B, uniforms(rows.seeds_B, next_positions_B))
        self._rows = BatchRows(
            last_tokens_B=tokens_B,
            positions_B=next_positions_B,
            seeds_B=rows.seeds_B,
            temperatures_B=rows.temperatures_B,
        )
        return tokens_B, logprobs_B

    def _read_rows(self) -> BatchRows:
        live = self._scheduler.rows
        return BatchRows(
            last_tokens_B=torch.tensor([each.last_token for each in live], device=self._device),
            positions_B=torch.tensor([each.num_tokens - 1 for each in live], device=self._device),
            seeds_B=torch.tensor([signed_64(each.request.sampling.seed) for each in live], device=self._device),
            temperatures_B=torch.tensor([each.request.sampling.temperature for each in live], device=self._device),
        )

    # Postprocess -------------------------------------------------------------------------------------------------

    def _collect(self, tokens: Sequence[int], logprobs: Sequence[float]) -> list[SequenceOutput]:
        reasons: dict[int, Literal["stop", "length"]] = {}
        for row, (live, token, logprob) in enumerate(zip(self._scheduler.rows, tokens, logprobs, strict=True)):
            live.token_ids.append(token)
            live.logprobs.append(logprob)
            live.versions.append(self._version)
            if token in self._eos_ids:
                reasons[row] = "stop"
            elif len(live.token_ids) == live.max_new_tokens:
                reasons[row] = "length"
        outputs = [self._scheduler.rows[row].end(reason) for row, reason in reasons.items()]
        self._retire(list(reasons))
        return outputs

    def _retire(self, rows: Sequence[int]) -> None:
        if rows:
            longest = max(each.num_tokens for each in self._scheduler.rows)
            self._cache.move(self._scheduler.retire(rows), min(longest, self._cache.num_positions))
            self._rows = None
