"""Adapters as versions side by side: one vLLM with the base, one batch, one KV cache, an adapter for each version.

    slot of version 7 ── AdapterEngine, vLLM's adapter 1 ─┐
    slot of version 5 ── AdapterEngine, vLLM's adapter 2 ─┴─ VllmRolloutEngine

Invariants:
- a sequence decodes with its slot's adapter, whatever else is in the batch; with none before the slot's first install;
- an adapter that does not fit is refused before vLLM sees it, and changes nothing; afterwards every worker holds the
  written bits, or the install fails;
- vLLM copies an adapter: its folder exists only during the copy;
- only requests with the same weights find cached pages: every install has another name and another salt;
- one step runs all slots: outputs of another slot are returned when that slot is stepped next, without a further step.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.inference.port import OWN_ROOM, EngineView, KvRoom, SequenceOutput, SequenceRequest
from engine.inference.vllm.engine import VllmRolloutEngine
from engine.inference.vllm.live_sequence import Held
from engine.inference.vllm.start import AdapterRoom, read_shapes
from engine.models.loading import read_config
from engine.process.progress import working
from engine.weights.installing import check_adapter
from engine.weights.low_rank import TARGETS, Base, names_of
from engine.weights.port import WeightVersion
from engine.weights.snapshot import map_weights
from engine.weights.sums import sums_of

LendFolder = Callable[[], AbstractContextManager[Path]]
"""An empty folder in memory that every process of the host can read; removed afterwards."""

CONFIG_FILE: Final = "adapter_config.json"
ADAPTER_FILE: Final = "adapter_model.safetensors"


class AdapterEngines:
    """The engines of one replica, one for each slot, on one vLLM."""

    def __init__(self, vllm: VllmRolloutEngine, folder: Path, *, room: AdapterRoom, lend_folder: LendFolder) -> None:
        """`vllm`: started with this folder's weights and this room."""
        self.vllm = vllm
        self._base, self._shapes, self._dtype = Base(folder), read_shapes(folder), read_config(folder).dtype
        self._room, self._lend_folder = room, lend_folder
        self._slots: dict[Held, AdapterEngine] = {}
        self._num_taken = 0

    def make(self) -> "AdapterEngine":
        assert len(self._slots) < self._room.num, f"more than {self._room.num} versions side by side"
        held = Held(version=0, salt="no adapter")
        self._slots[held] = AdapterEngine(self, held, number=1 + len(self._slots))
        return self._slots[held]

    def take(self, version: WeightVersion, held: Held, number: int) -> None:
        """Installs the version as vLLM's adapter `number`, replacing the present one."""
        modules = self._check(version)
        self._num_taken += 1
        name = f"version {version.version}, taken as number {self._num_taken}"
        with self._lend_folder() as folder, working("install"):
            tensors = write_adapter(folder, version, modules, dtype=self._dtype)
            sums = dict(zip(tensors, sums_of(tensors.values()), strict=True)) if version.manifest.sums else {}
            self.vllm.install_adapter(held, folder, version, sums, name=name, number=number)

    def _check(self, version: WeightVersion) -> list[str]:
        """The names of the adapted modules. Raises `ValueError` if the version does not fit, and `OtherWeights` if it
        changed on its way."""
        if version.manifest.low_rank is None:
            raise ValueError(f"version {version.version}: an adapter, as others share the base; got all weights")
        matrices = self._base.check(version, self._shapes)
        modules = [name.removesuffix(".weight") for name in matrices]
        foreign = [name for name in modules if name.rpartition(".")[2] not in TARGETS or ".experts." in name]
        if foreign:
            raise ValueError(
                f"version {version.version}: an adapter of {', '.join(TARGETS)}, not of experts; got one of "
                f"{', '.join(sorted(foreign)[:5])}"
            )
        rank = rank_of(version, modules)
        if not 0 < rank <= self._room.rank:
            raise ValueError(f"version {version.version}: an adapter of rank 1 to {self._room.rank}, got {rank}")
        check_adapter(version)
        return modules

    @property
    def num_tokens(self) -> int:
        """Tokens of all sequences in flight."""
        return sum(live.num_tokens for held in self._slots for live in self.vllm.on(held))

    def step(self, asking: "AdapterEngine") -> list[SequenceOutput]:
        if not asking.was_stepped:
            for slot in self._slots.values():
                slot.was_stepped = bool(self.vllm.on(slot.held))
            for held, output in self.vllm.step_all():
                self._slots[held].ended.append(output)
        asking.was_stepped = False
        ended, asking.ended = asking.ended, []
        return ended


class AdapterEngine:
    """The rollout engine of one slot."""

    def __init__(self, engines: AdapterEngines, held: Held, *, number: int) -> None:
        self._engines, self._vllm, self._number = engines, engines.vllm, number
        self.held = held
        self.was_stepped = False
        """Another slot's step included this slot, whose own `step` was not called since."""
        self.ended: list[SequenceOutput] = []

    def submit(self, requests: Sequence[SequenceRequest]) -> None:
        self._vllm.submit(requests, self.held)

    def step(self) -> list[SequenceOutput]:
        return self._engines.step(self)

    def abort(self, sequence_ids: Sequence[str]) -> list[SequenceOutput]:
        return self._vllm.abort(sequence_ids)

    def export(
        self, sequence_ids: Sequence[str], *, leave: bool, with_kv: bool, room: KvRoom = OWN_ROOM
    ) -> list[SequenceRequest]:
        return self._vllm.export(sequence_ids, leave=leave, with_kv=with_kv, room=room)

    def install(self, weights: WeightVersion) -> None:
        """Waiting sequences are submitted again with the new adapter; running ones use it from their next token on."""
        self._engines.take(weights, self.held, self._number)

    def probe(self, token_ids: Sequence[int]) -> tuple[float, ...]:
        return self._vllm.probe(token_ids, self.held)

    def view(self) -> EngineView:
        """`kv_used` is by the slot's share of tokens, as prompts share blocks. Unreturned outputs count as running."""
        own = self._vllm.on(self.held)
        num_running = sum(map(self._vllm.is_running, own))
        num_own, num_all = sum(live.num_tokens for live in own), self._engines.num_tokens
        return EngineView(
            num_running=num_running + len(self.ended),
            num_waiting=len(own) - num_running,
            kv_used=self._vllm.view().kv_used * num_own / max(1, num_all),
            version=self.held.version,
            num_prefilled=self.held.num_prefilled,
            num_decoded=self.held.num_decoded,
        )


def write_adapter(
    folder: Path, version: WeightVersion, modules: Sequence[str], *, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Writes peft's format in the dtype of the products, and returns the tensors. The scale is multiplied into B, so it
    is rounded once."""
    low_rank, given = version.manifest.low_rank, map_weights(version)
    assert low_rank is not None, "full weights are no adapter"
    tensors: dict[str, Tensor] = {}
    for first, second in map(names_of, modules):
        tensors |= {first: given[first].to(dtype), second: (given[second] * low_rank.scale).to(dtype)}
    save_file(tensors, folder / ADAPTER_FILE)
    rank = rank_of(version, modules)
    config = {"r": rank, "lora_alpha": rank, "target_modules": list(TARGETS)}  # vLLM multiplies by alpha / r
    (folder / CONFIG_FILE).write_text(json.dumps(config))
    return tensors


def rank_of(version: WeightVersion, modules: Sequence[str]) -> int:
    """The largest rank of the modules."""
    shapes = {entry.name: entry.shape for entry in version.manifest.tensors}
    return max((shapes[names_of(module)[0]][0] for module in modules), default=0)
