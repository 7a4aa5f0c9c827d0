"""A replica's actor: builds its engine, and passes messages between its body and the other actors."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import ray

from engine.inference.port import RolloutEngine
from engine.inference.stop import Decoder
from engine.inference.vllm.interpreter import STARTED_WITH, explain_missing_packages
from engine.live.assets.job_assets import JobAssets
from engine.live.body.actor import BodyActor
from engine.live.body.loop import Body
from engine.live.body.recording import plain
from engine.live.environment.turns import Answer, Ask
from engine.live.process.devices import claim_device
from engine.live.process.fitting import check_fit
from engine.live.process.links import Links
from engine.live.process.memory import arithmetic
from engine.live.process.settings import vllm_python
from engine.live.weights.segments import lent_folder
from engine.pipeline.messages.addresses import DRIVER, Address, environment_of, rollout_address
from engine.pipeline.messages.to_driver import ReplicaObserved
from engine.pipeline.plan import Plan
from engine.pipeline.rollout.brain import RolloutBrain
from engine.process.progress import working
from engine.spec.job import JobSpec
from engine.spec.slots import kv_tokens_of_a_slot, share_an_engine


class RolloutActor(BodyActor):
    def __init__(
        self,
        *,
        spec: JobSpec,
        plan: Plan,
        replica: int,
        incarnation: int,
        relay: int,
        links: Links,
        recordings: Path | None,
        assets: JobAssets | None = None,
    ) -> None:
        self._spec, self._plan, self._links, self._assets = spec, plan, links, assets
        self._replica, self._incarnation, self._relay = replica, incarnation, relay
        self._device = "cpu"
        built_with = {
            "plan": plain(plan),
            "replica": replica,
            "incarnation": incarnation,
            "relay": relay,
        }
        super().__init__(
            part=rollout_address(replica), incarnation=incarnation, recordings=recordings, built_with=built_with
        )

    @staticmethod
    def options(spec: JobSpec) -> dict[str, Any]:
        if spec.rollout.engine != "vllm":
            return {}
        from engine.live.process.ray_session import (
            in_interpreter,  # only the driver needs it: replicas load no HTTP client
        )

        return {"runtime_env": in_interpreter(vllm_python(), STARTED_WITH)}

    def build(self) -> Body:
        with explain_missing_packages() if self._spec.rollout.engine == "vllm" else nullcontext():
            return self._build_body()

    def _build_body(self) -> Body:
        device = self._device = claim_device()
        from engine.live.rollout.body import RolloutBody, Wires  # heavy imports run on this thread, not earlier
        from engine.live.rollout.weight_slots import WeightSlots
        from engine.live.rollout.wording import Wording, open_model_texts
        from engine.models.loading import resolve_model

        spec, plan = self._spec, self._plan
        if self._assets is not None:
            self._assets.ensure("model")
        folder = resolve_model(spec.model.source)
        check_fit("replica", spec, folder, device)
        start_engine = partial(_start_engine, folder, spec, device, open_model_texts(folder, spec.model).tokenizer)
        return RolloutBody(
            spec=spec,
            brain=RolloutBrain(plan, replica=self._replica, incarnation=self._incarnation, relay=self._relay),
            replica=self._replica,
            incarnation=self._incarnation,
            slots=WeightSlots(
                _engines(start_engine, folder, spec, plan, owner=f"{self._links.run}-replica{self._replica}"),
                num_slots=plan.weight_slots,
                share_cache=share_an_engine(spec),
            ),
            wording=Wording.of_model(folder, spec.model),
            wires=Wires(
                post=self._send,
                ask=self._ask,
                observe=self._observe,
                on_loop=lambda call: self._loop.call(call),
            ),
            links=self._links,
        )

    def memory_needed(self) -> str:
        return arithmetic(self._spec, part="rollout", device=self._device)

    @ray.method(concurrency_group="inbox", num_returns=0)
    def answer(self, answers: Sequence[Answer]) -> None:
        self._loop.call(lambda body: body.on_answers(answers))

    def met(self, peers: Mapping[Address, Any]) -> None:
        if any(peer.kind == "environment" for peer in peers):  # a new worker lacks its predecessor's requests
            self._loop.call(lambda body: body.ask_again())

    def _ask(self, asks: Sequence[Ask]) -> None:
        by_worker: defaultdict[Address, list[Ask]] = defaultdict(list)
        for ask in asks:
            by_worker[environment_of(ask.key.group.ordinal, self._spec.environment.workers)].append(ask)
        for worker, batch in by_worker.items():
            if worker in self._peers:  # else the requests are sent again after their timeout
                self._peers[worker].ask.remote(batch)

    def _observe(self, observed: ReplicaObserved) -> None:
        self._loop.outbox.put(DRIVER, observed)


def _engines(
    start_engine: Callable[..., Any], folder: Path, spec: JobSpec, plan: Plan, *, owner: str
) -> Callable[[], RolloutEngine]:
    """The factory of engines, one for each held version. Adapters share one engine, which starts here."""
    if not share_an_engine(spec):
        return start_engine
    from engine.inference.vllm.adapters import AdapterEngines
    from engine.inference.vllm.start import AdapterRoom

    room = AdapterRoom(num=plan.weight_slots, rank=spec.trainer.lora_rank)
    vllm = start_engine(adapters=room, begins_empty=False)  # adapter versions lack the base
    return AdapterEngines(vllm, folder, room=room, lend_folder=partial(lent_folder, f"{owner}-adapter")).make


def _start_engine(folder: Path, spec: JobSpec, device: str, tokenizer: Decoder, **vllm_options: Any) -> Any:
    """Engines start empty and get weights from the relay: 12 replicas reading 64 GB would take 780 GB from one disk."""
    options: dict[str, Any] = {
        "max_batch": spec.rollout.max_batch,
        "device": device,
        "kv_tokens": kv_tokens_of_a_slot(spec),
        "tokenizer": tokenizer,
    }
    with working("start", is_opaque=True):
        if spec.rollout.engine == "vllm":
            from engine.inference.vllm.engine import VllmRolloutEngine

            vllm_options = {"num_devices": spec.resources.devices_per_replica, "begins_empty": True} | vllm_options
            return VllmRolloutEngine(folder, **options, **vllm_options)
        from engine.inference.torch_engine import TorchRolloutEngine

        return TorchRolloutEngine(folder, **options, begins_empty=True)
