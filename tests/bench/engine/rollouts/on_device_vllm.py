"""The part of `bench gpu` in vLLM's environment: figures of one way of running vLLM.

Rows have different prompts, so that no two share pages, and are prefilled before the clock starts. Starting vLLM is the
first request, so that its failure is an answer, too.
"""

import asyncio
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from engine.inference.port import SamplingParams, SequenceRequest
from engine.inference.vllm import start
from engine.inference.vllm.start import MAX_READ_IN, V1, V2, Runner
from tests.bench.engine.rollouts.in_vllm import answer_lines

ASYNCHRONOUS: Final = "asynchronous engine"
RUNNERS: Final[dict[str, Runner]] = {"V2, waiting for each step": replace(V2, is_ahead=False), "V1": V1}
"""Of the ways that are not the engine's own."""
WORDS: Final = 500
_NEXT_PROMPTS = itertools.count()
Answer = dict[str, Any]


class Ours:
    """Our engine, with the runner that it has by itself or with another."""

    def __init__(self, setup: dict[str, Any]) -> None:
        self._setup, self._own_s = setup, 0.0
        self._engine: Any = None
        self._folder = Path(setup["folder"])
        if setup["way"] in RUNNERS:
            start.runner_on = lambda device: RUNNERS[setup["way"]]

    def __call__(self, order: dict[str, Any]) -> Answer:
        match order["do"]:
            case "start":
                self._engine = self._start()
                return {}
            case "install":
                return self._install(order)
            case _:
                return self._decode(order)

    def _start(self) -> Any:
        from engine.inference.vllm.engine import VllmRolloutEngine

        bench = self

        class Engine(VllmRolloutEngine):
            @property
            def kv_tokens(self) -> int:
                return self._limits.kv_tokens or 0

            def _advance(self) -> Any:
                started = time.perf_counter()
                try:
                    return super()._advance()
                finally:
                    bench._own_s -= time.perf_counter() - started

        return Engine(self._folder, max_batch=self._setup["max_batch"], device=self._setup["device"])

    def _decode(self, order: dict[str, Any]) -> Answer:
        engine, wanted = self._engine, requests(order)
        num_tokens = sum(len(each.prompt_ids) + each.sampling.max_new_tokens for each in wanted)
        if num_tokens > engine.kv_tokens:
            raise ValueError(f"there is room for {engine.kv_tokens} tokens, and this takes {num_tokens}")
        before = engine.view()
        engine.submit(wanted)
        seconds, own_ms, num_ended = [], [], 0
        try:
            while engine.view().num_prefilled - before.num_prefilled < order["batch"] * (order["context"] - 1):
                num_ended += len(engine.step())
            for _ in range(order["repeats"]):
                self._own_s, started = 0.0, time.perf_counter()
                for _ in range(order["steps"]):
                    num_ended += len(engine.step())
                seconds.append(time.perf_counter() - started)
                own_ms.append(1e3 * (self._own_s + seconds[-1]) / order["steps"])
            num_said = engine.view().num_decoded - before.num_decoded
        finally:
            engine.abort([each.sequence_id for each in wanted])
        assert not num_ended, "a row ended before it was measured"
        return {"seconds": seconds, "own_ms": own_ms, "context": order["context"] + num_said / order["batch"]}

    def _install(self, order: dict[str, Any]) -> Answer:
        """Of what the folder has, from this host's memory."""
        from safetensors.torch import load_file

        from engine.models.loading import weight_files
        from engine.policy.lineage import WeightsId
        from engine.weights.snapshot import pack_weights

        tensors = {name: value for file in weight_files(self._folder) for name, value in load_file(file).items()}
        weights, seconds = pack_weights(tensors, weights=WeightsId(0, 0)), []
        for _ in range(1 + order["repeats"]):
            started = time.perf_counter()
            self._engine.install(weights)
            seconds.append(time.perf_counter() - started)
        return {"bytes": len(weights.buffer), "seconds": seconds[1:]}


class Asynchronous:
    """vLLM's engine with its core in a process of its own, with our draw; every row is a stream."""

    def __init__(self, setup: dict[str, Any]) -> None:
        self._setup, self._loop = setup, asyncio.new_event_loop()
        self._engine: Any = None
        self._num_by_row: dict[str, int] = {}
        self._is_reached: Callable[[], bool] = bool
        self._reached = asyncio.Event()

    def __call__(self, order: dict[str, Any]) -> Answer:
        return self._loop.run_until_complete(self._start() if order["do"] == "start" else self._decode(order))

    async def _decode(self, order: dict[str, Any]) -> Answer:
        wanted, seconds = requests(order), []
        self._num_by_row = dict.fromkeys((each.sequence_id for each in wanted), 0)
        rows = [asyncio.ensure_future(self._follow(each)) for each in wanted]
        try:
            await self._until(lambda: all(self._num_by_row.values()), rows)
            for _ in range(order["repeats"]):
                started, goal = time.perf_counter(), self._num_tokens + order["batch"] * order["steps"]
                await self._until(partial(self._has_decoded, goal), rows)
                seconds.append(time.perf_counter() - started)
        finally:
            for row in rows:
                row.cancel()
            await asyncio.gather(*rows, return_exceptions=True)
        return {"seconds": seconds, "own_ms": [], "context": order["context"] + self._num_tokens / order["batch"]}

    def _has_decoded(self, num_tokens: int) -> bool:
        return self._num_tokens >= num_tokens

    @property
    def _num_tokens(self) -> int:
        return sum(self._num_by_row.values())

    async def _start(self) -> Answer:
        arguments = start.engine_arguments(
            Path(self._setup["folder"]),
            max_batch=self._setup["max_batch"],
            device=self._setup["device"],
            kv_tokens=0,
            num_devices=1,
        )
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"
        from vllm import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        given = {each.name: getattr(arguments, each.name) for each in fields(arguments)}
        self._engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**given))
        return {}

    async def _follow(self, wanted: SequenceRequest) -> None:
        from vllm import SamplingParams as VllmParams
        from vllm.sampling_params import RequestOutputKind

        from engine.inference.vllm.sampler import to_extra_args

        params = VllmParams(
            temperature=0.0,
            max_tokens=wanted.sampling.max_new_tokens,
            ignore_eos=True,
            logprobs=0,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
            extra_args=to_extra_args(wanted.sampling),
        )
        prompt = {"prompt_token_ids": list(wanted.prompt_ids)}
        async for output in self._engine.generate(prompt, params, wanted.sequence_id):
            self._num_by_row[wanted.sequence_id] += len(output.outputs[0].token_ids)
            if self._is_reached():
                self._reached.set()
        raise AssertionError("a row ended before it was measured")

    async def _until(self, is_reached: Callable[[], bool], rows: Sequence[asyncio.Task[None]]) -> None:
        """Raises what ends a row meanwhile."""
        self._is_reached = is_reached
        self._reached.clear()
        reached: asyncio.Future[Any] = asyncio.ensure_future(self._reached.wait())
        done, _ = await asyncio.wait({reached, *rows}, return_when=asyncio.FIRST_COMPLETED)
        if reached not in done:
            reached.cancel()
            done.pop().result()


def requests(order: dict[str, Any]) -> list[SequenceRequest]:
    """Requests with enough tokens for the prefill of the others and the measurement."""
    batch, context = order["batch"], order["context"]
    num_reading = -(-batch * context // MAX_READ_IN)
    new_tokens = num_reading + order["steps"] * order["repeats"] + batch + 8
    generator = torch.Generator().manual_seed(next(_NEXT_PROMPTS))
    return [
        SequenceRequest(
            sequence_id=f"{next(_NEXT_PROMPTS)}",
            prompt_ids=tuple(prompt),
            sampling=SamplingParams(max_new_tokens=new_tokens, temperature=0.0, seed=0),
        )
        for prompt in torch.randint(1, WORDS, (batch, context), generator=generator).tolist()
    ]


def main() -> None:
    told = json.loads(sys.argv[1])
    answer_lines(Asynchronous(told) if told["way"] == ASYNCHRONOUS else Ours(told))


if __name__ == "__main__":
    main()
