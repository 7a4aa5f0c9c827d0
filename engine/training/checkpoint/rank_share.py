"""The files of one rank, written from its copy.

    one process   model.safetensors                 optimizer.safetensors
    rank 1 of 4   model-00002-of-00004.safetensors  state-00002-of-00004.safetensors
    rank 0        the small files, the adapter in peft's layout, the manifest

The state is what each rank has. The weights of others (transformers, rollouts) are whole tensors: ranks take turns at
them, each assembles its next one from everybody's copies, as rollouts get it, and writes it.

Invariants:
- no rank holds more than its own part and one tensor, in which an adapter is merged if there is one;
- a rank that cannot write goes on taking its turns, so that nobody waits for it, and is named at the end;
- the manifest comes last: when every rank has written its files and read them back.
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
from engine.signs import at_work
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
"""Of each parameter, every rank's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedModel:
    """What others read: every parameter of the decoder, in the dtype that rollouts run in."""

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
        """Whose turn each is: the next is that of the rank that has written least."""
        written = [0] * num_ranks
        found: dict[str, int] = {}
        for name, place in self.places.items():
            found[name] = written.index(min(written))
            written[found[name]] += place.shape.numel()
        return found


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
        """The parts that this rank has written. Collective."""
        with self._noted():
            self._begin()
        spans = self._spans()  # nobody writes before rank 0 has taken away what was here
        with self._noted():
            self._write_model(spans)
        if self.published.adapter is not None:
            with self._noted():
                self._write_adapter(spans)
        if not self._failures:
            with self._noted():
                self._write_own()
        self._end()
        return self._written

    @contextmanager
    def _noted(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - told to every rank in `_end`
            self._failures.append(error)

    def _begin(self) -> None:
        begin_checkpoint(self.folder)
        if self.world.index == 0:
            for stale in self.folder.glob("*.safetensors*"):  # of another number of ranks, perhaps
                stale.unlink()

    def _spans(self) -> Spans:
        own = [[share.span.start, share.span.stop] for share in self._sources.values()]
        every = [json.loads(each) for each in self.world.exchange(json.dumps(own).encode())]
        return {name: [range(*spans) for spans in of_all] for name, *of_all in zip(self._sources, *every, strict=True)}

    @property
    def _sources(self) -> dict[str, Share]:
        """What published weights are made of."""
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
            model_file(self.world.index, self.world.count), entries, self._published_values(spans, owners)
        )

    def _published_values(self, spans: Spans, owners: Mapping[str, int]) -> Iterator[Tensor]:
        adapter, dtype = self.published.adapter, self.published.dtype
        for name, place in self.published.places.items():
            on = owners[name]
            if adapter is None:
                whole = self._assembled(name, spans, on=on, dtype=dtype)
            else:
                needed = [self._assembled(each, spans, on=on) for each in self.published.needed_for(name)]
                there = [each for each in needed if each is not None]
                whole = adapter.merged_of(name, there).to(dtype) if there else None
            if whole is not None:
                assert whole.numel() == place.shape.numel()
                yield whole

    def _write_adapter(self, spans: Spans) -> None:
        names = self.published.adapter_names
        entries = [Entry(name, torch.float32, tuple(self._sources[name].place.shape)) for name in names]
        values = (self._assembled(name, spans, on=0) for name in names)
        turns = (whole for whole in values if whole is not None)
        self._write_turns(f"{ADAPTER_FOLDER}/adapter_model.safetensors", entries, turns, is_mine=self.world.index == 0)

    def _assembled(self, name: str, spans: Spans, *, on: int, dtype: torch.dtype = torch.float32) -> Tensor | None:
        source = self._sources[name]
        with at_work("gather"):
            whole = self.world.assemble(source.values.to("cpu", dtype), spans[name], on=on)
        return None if whole is None else whole.view(source.place.shape)

    def _write_turns(
        self, name: str, entries: Sequence[Entry], turns: Iterator[Tensor], *, is_mine: bool = True
    ) -> None:
        try:
            if is_mine:
                self._write(name, lambda file: write_tensors(file, entries, turns))
        finally:
            deque(turns, maxlen=0)  # the others' turns

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
                        yield from _entries(under, share)

    def _small_files(self) -> dict[str, bytes]:
        files = {**self.published.companions, TRAINER_FILE: json.dumps(asdict(self.progress), indent=2).encode()}
        if self.world.count > 1:
            files[INDEX_FILE] = self._index()
        if self.published.adapter is not None:
            files[f"{ADAPTER_FOLDER}/adapter_config.json"] = self.published.adapter.config
        return files

    def _index(self) -> bytes:
        """Which file has which tensor, as transformers looks it up."""
        places, owners = self.published.places, self.published.owners(self.world.count)
        where = {
            public: model_file(owners[name], self.world.count)
            for name, place in places.items()
            for public, _, _ in place.parts
        }
        total = sum(place.shape.numel() for place in places.values()) * self.published.dtype.itemsize
        return json.dumps({"metadata": {"total_size": total}, "weight_map": where}, indent=2).encode()

    def _write(self, name: str, write: WritePart) -> None:
        self._written[name] = write_part(self.folder, name, write)

    # The end -----------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        if self.world.count == 1 and self._failures:
            raise self._failures[0]
        told = {
            "failure": f"{type(self._failures[0]).__name__}: {self._failures[0]}" if self._failures else "",
            "parts": {name: part.model_dump() for name, part in self._written.items()},
        }
        every = [json.loads(each) for each in self.world.exchange(json.dumps(told).encode())]
        if failed := [f"rank {rank}: {each['failure']}" for rank, each in enumerate(every) if each["failure"]]:
            raise SavingFailed(f"{self.folder.name} was not written: {'; '.join(failed)}") from (
                self._failures[0] if self._failures else None
            )
        if self.world.index == 0:
            with self._noted():
                parts = {name: part for each in every for name, part in each["parts"].items()}
                end_checkpoint(self.folder, {name: CheckpointPart.model_validate(part) for name, part in parts.items()})
        (of_first, *_) = self.world.exchange(str(self._failures[0]).encode() if self._failures else b"")
        if of_first:
            raise SavingFailed(f"{self.folder.name} was not written: rank 0: {of_first.decode()}")


def _entries(under: str, share: Share) -> Iterator[tuple[Entry, Tensor]]:
    for piece in share.pieces:
        values = share.values[piece.first : piece.first + len(piece.span)]
        yield Entry(under + piece.stored_name, values.dtype, piece.stored_shape), values


def _write_bytes(content: bytes, file: Path) -> None:
    file.write_bytes(content)
