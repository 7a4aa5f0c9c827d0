"""vLLM behind the rollout port: its engine in this process, one step at a time, on one device or several.

vLLM schedules, batches and computes; this class keeps the tokens of a sequence, the versions that wrote them and its
stop strings, so that an abort, a move or a swap loses nothing.

Invariants (in addition to the port's):
- cached keys and values of a prompt are found only by requests with the same weights, so a swap hides them;
- `install` changes every tensor or, if one does not fit, none. After an `install` that failed half-way, every call
  raises;
- afterwards the sums of what the workers hold are the trainer's, or `install` raises `OtherWeights`.
"""

# Over budget: all methods of the port read or change the state of one vLLM core.

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.inference.port import OWN_ROOM, EngineView, KvPages, KvRoom, SequenceOutput, SequenceRequest
from engine.inference.requests import Limits, check_request
from engine.inference.stop import Decoder, StopWatcher
from engine.inference.vllm.core import Core
from engine.inference.vllm.live_sequence import Held, LiveSequence
from engine.inference.vllm.routes import NotedRoutes
from engine.inference.vllm.start import (
    NO_ADAPTERS,
    AdapterRoom,
    notes_routes,
    read_max_positions,
    read_shapes,
    start_vllm,
)
from engine.models.tokenizer import Tokenizer, read_eos_ids
from engine.process.progress import working
from engine.weights.installing import check_adapter
from engine.weights.low_rank import Base
from engine.weights.parts import check_held
from engine.weights.port import WeightVersion
from engine.weights.sums import published_sums

if TYPE_CHECKING:  # imports vLLM
    from engine.inference.vllm.front import TokenOutput
    from engine.inference.vllm.kv import PageConnector


class VllmRolloutEngine:
    def __init__(
        self,
        model_folder: Path,
        *,
        max_batch: int,
        device: str,
        version: int = 0,
        kv_tokens: int = 0,
        num_devices: int = 1,
        begins_empty: bool = False,
        adapters: AdapterRoom = NO_ADAPTERS,
        tokenizer: Decoder | None = None,
    ) -> None:
        """`version`: of the folder's weights; with `begins_empty` they are not read. `tokenizer`: None: its own."""
        given: dict[str, Any] = {"max_batch": max_batch, "device": device, "kv_tokens": kv_tokens}
        llm = start_vllm(model_folder, **given, num_devices=num_devices, begins_empty=begins_empty, adapters=adapters)
        self._core = Core(llm, is_empty=begins_empty)
        self._pages: PageConnector = self._core.scheduler.get_kv_connector()
        layouts: list[tuple[str, int]] = self._llm.collective_rpc("kv_layout")
        assert len(set(layouts)) == 1, f"workers have different cache layouts: {layouts}"
        self._kv_layout, self._kv_block_bytes = layouts[0][0], sum(num_bytes for _, num_bytes in layouts)
        self._folder, self._base = model_folder, Base(model_folder)
        self._shapes = read_shapes(model_folder)
        self._eos_ids = read_eos_ids(model_folder)
        self._tokenizer: Decoder = tokenizer or Tokenizer.from_folder(model_folder)
        self._routes = NotedRoutes.of(model_folder, is_noting=notes_routes(model_folder, device))
        cache = self._llm.vllm_config.cache_config
        self._limits = Limits(
            vocab_size=self._llm.model_config.get_vocab_size(),
            max_positions=read_max_positions(model_folder),
            kv_tokens=(cache.num_gpu_blocks - 1) * cache.block_size,  # one block is vLLM's own
            route_bytes=self._routes.token_bytes,
        )
        self._held = Held(version=version, salt="weights 0")
        self._num_installed = 0
        self._live: dict[str, LiveSequence] = {}
        self._ended: list[LiveSequence] = []

    @property
    def _llm(self) -> Any:
        """vLLM's engine. Raises if it has failed."""
        return self._core.llm

    def close(self) -> None:
        """Ends worker processes, which otherwise end with this process."""
        self._core.close()

    def submit(self, requests: Sequence[SequenceRequest], held: Held | None = None) -> None:
        """`held`: the weights to decode on; None: the engine's own."""
        self._core.check_begun()
        begun: dict[str, LiveSequence] = {}
        for request in requests:
            if request.sequence_id in self._live.keys() | begun.keys():
                raise ValueError(f"sequence_id: must not be in flight already, got {request.sequence_id!r}")
            begun[request.sequence_id] = self._begin(request, held or self._held)
        self._live |= begun
        for request in requests:
            self._enter(begun[request.sequence_id], request.progress.kv if request.progress else None)

    def step(self) -> list[SequenceOutput]:
        return [output for _, output in self.step_all()]

    def step_all(self) -> list[tuple[Held, SequenceOutput]]:
        """Outputs with the weights that each sequence decoded on."""
        if not self._live:
            return []
        self._record_all(self._advance())
        ended, self._ended = self._ended, []
        self._routes.pack_new(ended)
        for live in ended:
            del self._live[live.request.sequence_id]
        return [(live.held, live.end(live.ended)) for live in ended if live.ended]

    def _record_all(self, outputs: "Iterable[TokenOutput]") -> None:
        for output in outputs:
            live = self._live[output.name]
            is_complete = self._record(live, output)
            if is_complete or output.ended is not None:
                if output.ended is None:
                    self._llm.abort_request([output.name])
                live.ended = "stop" if is_complete else output.ended
                self._ended.append(live)

    def _advance(self) -> "Iterable[TokenOutput]":
        is_decoding = all(live.is_prefilled for live in self._live.values())
        with working("decode" if is_decoding else "prefill"):
            return self._core.step()

    def abort(self, sequence_ids: Sequence[str]) -> list[SequenceOutput]:
        withdrawn = self._withdraw(self._in_flight(sequence_ids))
        self._routes.pack_new(withdrawn)
        return [live.end("aborted") for live in withdrawn]

    def export(
        self, sequence_ids: Sequence[str], *, leave: bool, with_kv: bool, room: KvRoom = OWN_ROOM
    ) -> list[SequenceRequest]:
        self._core.check()
        names = self._in_flight(sequence_ids)
        self._routes.pack_new([self._live[name] for name in names])
        requests = [self._live[name].as_request(self._read_kv(name, room) if with_kv else None) for name in names]
        if leave:
            self._withdraw(names)
        return requests

    def install(self, weights: WeightVersion) -> None:
        if weights.manifest.low_rank is None:
            self._refuse_other_shapes(weights)
        else:
            self._base.check(weights, self._shapes)
            check_adapter(weights)
        self._record_all(self._core.finish())  # the present weights made these tokens
        with working("install"):
            held = self._core.install(weights, folder=self._folder, shapes=self._shapes)
        expected = published_sums(weights.manifest) if weights.manifest.low_rank is None else held[0].merged
        check_held(weights.manifest, expected, self._shapes, held)
        self._renew(self._held, weights.version)
        self._llm.reset_prefix_cache()  # vLLM refuses while sequences run; the new salt hides the old pages then

    def install_adapter(
        self, held: Held, folder: Path, weights: WeightVersion, sums: Mapping[str, int], *, name: str, number: int
    ) -> None:
        """Installs the folder's adapter in addition to the engine's weights, replacing vLLM's adapter `number`. `sums`:
        of the folder's tensors; empty: not compared."""
        from vllm.lora.request import LoRARequest

        adapter = partial(LoRARequest, name, number, str(folder))
        self._record_all(self._core.finish())
        self._core.add_adapter(adapter(load_inplace=True))
        if sums:
            adapted = {entry.name: entry.shape for entry in weights.manifest.tensors}
            check_held(weights.manifest, sums, adapted, self._core.adapter_parts(number, self._shapes, adapted))
        held.adapter = adapter()  # for requests, without `load_inplace`: the folder is not read again
        self._renew(held, weights.version)

    def _renew(self, held: Held, version: int) -> None:
        """Sets the new version. Sequences on these weights continue."""
        self._num_installed += 1
        held.version, held.salt = version, f"weights {self._num_installed}"
        for live in [live for live in self.on(held) if live.ended is None]:
            live.is_mixed = self.is_running(live)
            if not live.is_mixed:  # a waiting sequence would find cached pages of the old weights
                self._llm.abort_request([live.request.sequence_id])
                self._enter(live, None)

    def on(self, held: Held) -> list[LiveSequence]:
        return [live for live in self._live.values() if live.held is held]

    def is_running(self, live: LiveSequence) -> bool:
        return live.ended is not None or self._pages.holds_blocks(live.vllm_id)

    def _refuse_other_shapes(self, weights: WeightVersion) -> None:
        shapes = {entry.name: entry.shape for entry in weights.manifest.tensors}
        differing = {name for name in shapes.keys() | self._shapes if shapes.get(name) != self._shapes.get(name)}
        if differing:
            raise ValueError(f"version {weights.version}: not of this model: {', '.join(sorted(differing)[:5])}")

    def probe(self, token_ids: Sequence[int], held: Held | None = None) -> tuple[float, ...]:
        self._record_all(self._core.finish())
        with working("probe"):
            return self._core.probe(token_ids, (held or self._held).adapter)

    def view(self) -> EngineView:
        num_running, num_waiting = self._core.scheduler.get_request_counts()
        return EngineView(
            num_running=num_running + len(self._ended),
            num_waiting=num_waiting,
            kv_used=self._core.scheduler.get_kv_cache_usage(),
            version=self._held.version,
            num_prefilled=self._held.num_prefilled,
            num_decoded=self._held.num_decoded,
        )

    # One sequence ------------------------------------------------------------------------------------------------

    def _begin(self, request: SequenceRequest, held: Held) -> LiveSequence:
        check_request(request, self._limits)
        kv = request.progress.kv if request.progress is not None else None
        if kv is not None and self._takes(kv, held) and len(kv.data) != self._num_bytes(kv.num_tokens):
            raise ValueError(f"progress of {request.sequence_id!r}: pages of {len(kv.data)} bytes are torn")
        stop = StopWatcher(self._tokenizer, request.sampling.stop) if request.sampling.stop else None
        return LiveSequence.from_request(request, self._limits.room(request), held, stop)

    def _enter(self, live: LiveSequence, kv: KvPages | None) -> None:
        self._routes.pack_new([live])
        num_routed = self._routes.num_known(live.routes)
        taken = kv if kv is not None and self._takes(kv, live.held) else None
        if taken is not None and self._routes.token_bytes and num_routed < taken.num_tokens:
            taken = None  # the routes of imported tokens would be unknown
        live.is_mixed = taken is not None and taken.mixed
        salt = live.held.salt + (f", only {live.request.sequence_id}" if live.is_mixed else "")
        prompt = {"prompt_token_ids": live.context, "cache_salt": salt}
        live.vllm_id = self._llm.add_request(
            live.request.sequence_id, prompt, self._sampling(live), lora_request=live.held.adapter
        )
        if taken is not None:
            self._pages.offer(live.vllm_id, taken)

    def _sampling(self, live: LiveSequence) -> Any:
        from vllm import SamplingParams

        from engine.inference.vllm.sampler import to_extra_args

        return SamplingParams(
            temperature=0.0,  # sampler.py draws
            max_tokens=live.max_new_tokens - len(live.token_ids),
            stop_token_ids=list(self._eos_ids),
            ignore_eos=True,
            logprobs=0,
            detokenize=False,
            extra_args=to_extra_args(live.request.sampling),
            routed_experts_prompt_start=self._routes.num_known(live.routes),
        )

    def _record(self, live: LiveSequence, output: "TokenOutput") -> bool:
        """True if a stop string is complete."""
        if not live.is_prefilled:  # the last token of a context counts as decoded
            live.is_prefilled = True
            live.held.num_prefilled += max(0, len(live.context) - 1 - (output.num_cached_tokens or 0))
        live.token_ids.append(output.token)
        live.logprobs.append(output.logprob)
        live.versions.append(live.held.version)
        if output.routes is not None and self._routes.token_bytes:
            live.new_routes.append(output.routes)
        live.held.num_decoded += 1
        return live.stop is not None and live.stop.completes(output.token)

    def _in_flight(self, sequence_ids: Sequence[str]) -> list[str]:
        return [name for name in dict.fromkeys(sequence_ids) if name in self._live]

    def _withdraw(self, names: list[str]) -> list[LiveSequence]:
        self._llm.abort_request(names)
        self._ended = [live for live in self._ended if live.request.sequence_id not in names]
        return [self._live.pop(name) for name in names]

    def _takes(self, kv: KvPages, held: Held) -> bool:
        return kv.layout == self._kv_layout and kv.version == held.version and kv.num_tokens > 0

    def _num_bytes(self, num_tokens: int) -> int:
        return self._pages.num_blocks(num_tokens) * self._kv_block_bytes

    def _read_kv(self, name: str, room: KvRoom) -> KvPages | None:
        """Pages of all tokens but the last, which has none yet. None for a sequence that waits (again)."""
        live = self._live[name]
        num_tokens = len(live.context) - 1
        blocks = self._pages.blocks_of(live.vllm_id, num_tokens) if live.is_prefilled else None
        if not blocks:
            return None
        pages = KvPages(
            layout=self._kv_layout, version=live.held.version, num_tokens=num_tokens, data=b"", mixed=live.is_mixed
        )
        memory = room.take(pages, self._num_bytes(num_tokens))
        if memory is None:
            return None
        self._core.read_pages(blocks, memory, room.filled)
        return replace(pages, data=memory)
