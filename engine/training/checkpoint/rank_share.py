"""Writes the files of one rank from its copy.

    one process   model.safetensors                 optimizer.safetensors
    rank 1 of 4   model-00002-of-00004.safetensors  state-00002-of-00004.safetensors
    rank 0        also the small files, the adapter in peft's layout, the manifest

A state file holds its rank's own values. The model files hold whole tensors for other readers (transformers,
rollouts): ranks take turns, and each assembles its next tensor from all ranks' copies, as published, and writes it.

Invariants:
- no rank holds more than its own part and one tensor, with the adapter merged if there is one;
- a rank that cannot write still takes part in all turns, so that no rank waits for it, and is named at the end;
- the manifest comes last, after every rank has written its files and read them back.
"""

import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from engine.models.loading import INDEX_FILE
from engine.process.progress import working
from engine.spec.checkpoint_manifest import CheckpointPart
from engine.training.checkpoint.content import (
    ADAPTER_FOLDER,
    TRAINER_FILE,
    SavingFailed,
    TrainerProgress,
    model_file,
    state_file,
)
from engine.training.checkpoint.folder import WritePart, begin_checkpoint, end_checkpoint, write_part
from engine.training.checkpoint.shares import KINDS, PartShares, Share
from engine.training.checkpoint.tensor_file import Entry, write_tensors
from engine.training.parts.layout import Place
from engine.training.parts.lora import Adapter
from engine.training.ranks.world import World

Spans = Mapping[str, Sequence[range]]
"""Every rank's span of each parameter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedModel:
    """The model as other programs read it: every parameter of the decoder, in the dtype of rollouts."""

    companions: Mapping[str, bytes]
    dtype: torch.dtype
    places: Mapping[str, Place]
    adapter: Adapter | None = None
    base: Mapping[str, Share] = field(default_factory=dict)
    """An adapter's base. It never changes, so it is not copied."""

    @property
    def adapter_names(self) -> list[str]:
        return [] if self.adapter is None else self.adapter.names

    def needed_for(self, name: str) -> list[str]:
        return [name, *([] if self.adapter is None else self.adapter.names_needed_for(name))]

    def owners(self, num_ranks: int) -> dict[str, int]:
        """The rank that writes each parameter: the one that has written least so far."""
        written = [0] * num_ranks
        owners: dict[str, int] = {}
        for name, place in self.places.items():
            owners[name] = written.index(min(written))
            written[owners[name]] += place.shape.numel()
        return owners


@dataclass(slots=True, kw_only=True)
class RankShare:
    folder: Path
    published: PublishedModel
    world: World
    parts: Sequence[PartShares]
    streams: Mapping[str, Tensor]
    progress: TrainerProgress
    _written: dict[str, CheckpointPart] = field(default_factory=dict)
    _failures: list[Exception] = field(default_factory=list)

    def write(self) -> Mapping[str, CheckpointPart]:
        """Writes this rank's files and returns their parts. Collective."""
        with self._catch_failure():
            self._begin()
        spans = self._exchange_spans()  # no rank writes before rank 0 has deleted stale files
        with self._catch_failure():
            self._write_model(spans)
        if self.published.adapter is not None:
            with self._catch_failure():
                self._write_adapter(spans)
        if not self._failures:
            with self._catch_failure():
                self._write_own()
        self._end()
        return self._written

    @contextmanager
    def _catch_failure(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - reported to every rank in `_end`
            self._failures.append(error)

    def _begin(self) -> None:
        begin_checkpoint(self.folder)
        if self.world.index == 0:
            for stale in self.folder.glob("*.safetensors*"):  # possibly of another number of ranks
                stale.unlink()

    def _exchange_spans(self) -> Spans:
        own = [[share.span.start, share.span.stop] for share in self._sources.values()]
        every = [json.loads(each) for each in self.world.exchange(json.dumps(own).encode())]
        return {name: [range(*spans) for spans in of_all] for name, *of_all in zip(self._sources, *every, strict=True)}

    @property
    def _sources(self) -> dict[str, Share]:
        """The values from which published weights are made."""
        return {**self.published.base, **self.parts[0].kinds["master"]}

    # Whole tensors -----------------------------------------------------------------------------------------------

    def _write_model(self, spans: Spans) -> None:
        published, owners = self.published, self.published.owners(self.world.count)
        entries = [
            Entry(public, published.dtype, tuple(shape))
            for name, place in published.places.items()
            if owners[name] == self.world.index
            for public, shape, _ in place.parts
        ]
        self._write_turns(
            model_file(self.world.index, self.world.count), entries, self._assemble_published(spans, owners)
        )

    def _assemble_published(self, spans: Spans, owners: Mapping[str, int]) -> Iterator[Tensor]:
        adapter, dtype = self.published.adapter, self.published.dtype
        for name, place in self.published.places.items():
            on = owners[name]
            if adapter is None:
                whole = self._assemble(name, spans, on=on, dtype=dtype)
            else:
                needed = [self._assemble(each, spans, on=on) for each in self.published.needed_for(name)]
                values = [each for each in needed if each is not None]
                whole = adapter.merged_of(name, values).to(dtype) if values else None
            if whole is not None:
                assert whole.numel() == place.shape.numel()
                yield whole

    def _write_adapter(self, spans: Spans) -> None:
        names = self.published.adapter_names
        entries = [Entry(name, torch.float32, tuple(self._sources[name].place.shape)) for name in names]
        values = (self._assemble(name, spans, on=0) for name in names)
        turns = (whole for whole in values if whole is not None)
        self._write_turns(f"{ADAPTER_FOLDER}/adapter_model.safetensors", entries, turns, is_mine=self.world.index == 0)

    def _assemble(self, name: str, spans: Spans, *, on: int, dtype: torch.dtype = torch.float32) -> Tensor | None:
        source = self._sources[name]
        with working("gather"):
            whole = self.world.assemble(source.values.to("cpu", dtype), spans[name], on=on)
        return None if whole is None else whole.view(source.place.shape)

    def _write_turns(
        self, name: str, entries: Sequence[Entry], turns: Iterator[Tensor], *, is_mine: bool = True
    ) -> None:
        try:
            if is_mine:
                self._write(name, lambda file: write_tensors(file, entries, turns))
        finally:
            deque(turns, maxlen=0)  # takes part in the other ranks' turns

    # This rank's own ---------------------------------------------------------------------------------------------

    def _write_own(self) -> None:
        stored = sorted(self._state(), key=lambda each: -each[0].dtype.itemsize)
        entries = [entry for entry, _ in stored]
        self._write(
            state_file(self.world.index, self.world.count),
            lambda file: write_tensors(file, entries, (values for _, values in stored)),
        )
        if self.world.index == 0:
            for name, content in self._small_files().items():
                self._write(name, partial(_write_bytes, content))

    def _state(self) -> Iterator[tuple[Entry, Tensor]]:
        if self.world.index == 0:
            for name, stream in self.streams.items():
                yield Entry(name, stream.dtype, tuple(stream.shape)), stream
        for each in self.parts:
            for kind in KINDS:
                if under := each.part.stored_under(kind):
                    for share in each.kinds[kind].values():
                        yield from _make_entries(under, share)

    def _small_files(self) -> dict[str, bytes]:
        files = {**self.published.companions, TRAINER_FILE: json.dumps(asdict(self.progress), indent=2).encode()}
        if self.world.count > 1:
            files[INDEX_FILE] = self._make_index()
        if self.published.adapter is not None:
            files[f"{ADAPTER_FOLDER}/adapter_config.json"] = self.published.adapter.config
        return files

    def _make_index(self) -> bytes:
        """transformers' index of the file that holds each tensor."""
        places, owners = self.published.places, self.published.owners(self.world.count)
        weight_map = {
            public: model_file(owners[name], self.world.count)
            for name, place in places.items()
            for public, _, _ in place.parts
        }
        total = sum(place.shape.numel() for place in places.values()) * self.published.dtype.itemsize
        return json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}, indent=2).encode()

    def _write(self, name: str, write: WritePart) -> None:
        self._written[name] = write_part(self.folder, name, write)

    # The end -----------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        if self.world.count == 1 and self._failures:
            raise self._failures[0]
        outcome = {
            "failure": f"{type(self._failures[0]).__name__}: {self._failures[0]}" if self._failures else "",
            "parts": {name: part.model_dump() for name, part in self._written.items()},
        }
        every = [json.loads(each) for each in self.world.exchange(json.dumps(outcome).encode())]
        if failed := [f"rank {rank}: {each['failure']}" for rank, each in enumerate(every) if each["failure"]]:
            raise SavingFailed(f"{self.folder.name} was not written: {'; '.join(failed)}") from (
                self._failures[0] if self._failures else None
            )
        if self.world.index == 0:
            with self._catch_failure():
                parts = {name: part for each in every for name, part in each["parts"].items()}
                end_checkpoint(self.folder, {name: CheckpointPart.model_validate(part) for name, part in parts.items()})
        (of_first, *_) = self.world.exchange(str(self._failures[0]).encode() if self._failures else b"")
        if of_first:
            raise SavingFailed(f"{self.folder.name} was not written: rank 0: {of_first.decode()}")


def _make_entries(under: str, share: Share) -> Iterator[tuple[Entry, Tensor]]:
    for piece in share.pieces:
        values = share.values[piece.first : piece.first + len(piece.span)]
        yield Entry(under + piece.stored_name, values.dtype, piece.stored_shape), values


def _write_bytes(content: bytes, file: Path) -> None:
    file.write_bytes(content)
