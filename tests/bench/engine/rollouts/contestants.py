"""The part of the rollouts bench that runs in vLLM's environment: vLLM through us, or vLLM alone, batch by batch."""

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from engine.inference.port import SequenceOutput
from engine.inference.vllm.start import ENVIRONMENT, MAX_READ_IN
from tests.bench.engine.rollouts.decode import requests
from tests.bench.engine.rollouts.in_vllm import answer_lines

KV_BYTES: Final = 2**30
Run = Callable[[dict[str, Any]], dict[str, Any]]


def ours(folder: Path, max_batch: int) -> Run:
    from engine.inference.vllm.engine import VllmRolloutEngine
    from engine.inference.vllm.sampler import SeededDraw

    clock = Clock()

    class Engine(VllmRolloutEngine):
        def step(self) -> list[SequenceOutput]:
            ended: list[SequenceOutput] = clock.within("step_s", super().step)
            return ended

        def _advance(self) -> Any:
            return clock.within("vllm_s", super()._advance)

    apply = SeededDraw.apply
    SeededDraw.apply = lambda self, logits: clock.within("draw_s", lambda: apply(self, logits))  # type: ignore[method-assign]
    engine = Engine(folder, max_batch=max_batch, device="cpu")

    def run(request: dict[str, Any]) -> dict[str, Any]:
        wanted = [
            replace(each, sampling=replace(each.sampling, temperature=request["temperature"]))
            for each in requests(request["batch"], request["new_tokens"], prompt_tokens=request["prompt_tokens"])
        ]

        def decode() -> int:
            engine.submit(wanted)
            num_tokens, num_left = 0, len(wanted)
            while num_left:
                ended = engine.step()
                num_left -= len(ended)
                num_tokens += sum(len(output.token_ids) for output in ended)
            return num_tokens

        clock.spent.clear()
        return {**timed(decode), **clock.spent}

    return run


def alone(folder: Path, max_batch: int) -> Run:
    """As its users call it, in this process as ours."""
    from vllm import LLM, SamplingParams, TokensPrompt

    llm = LLM(
        model=str(folder),
        dtype="float32",
        max_num_seqs=max_batch,
        max_num_batched_tokens=max(MAX_READ_IN, max_batch),
        enforce_eager=True,
        skip_tokenizer_init=True,
        generation_config="vllm",
        kv_cache_memory_bytes=KV_BYTES,
    )

    def run(request: dict[str, Any]) -> dict[str, Any]:
        wanted = requests(request["batch"], request["new_tokens"], prompt_tokens=request["prompt_tokens"])
        prompts = [TokensPrompt(prompt_token_ids=list(each.prompt_ids)) for each in wanted]
        sampling = SamplingParams(
            temperature=request["temperature"],
            max_tokens=request["new_tokens"],
            ignore_eos=True,
            detokenize=False,
            logprobs=0 if request["logprobs"] else None,
        )
        return timed(lambda: count_tokens(llm.generate(prompts, sampling, use_tqdm=False)))

    def count_tokens(outputs: Sequence[Any]) -> int:
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    return run


class Clock:
    """CPU time of what is called again and again."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}

    def within(self, name: str, work: Callable[[], Any]) -> Any:
        started = time.process_time()
        try:
            return work()
        finally:
            self.spent[name] = self.spent.get(name, 0.0) + time.process_time() - started


def timed(decode: Callable[[], int]) -> dict[str, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    num_tokens = decode()
    return {"tokens": num_tokens, "wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}


def main() -> None:
    os.environ.update(ENVIRONMENT)
    import torch._dynamo
    from vllm import ModelRegistry

    torch._dynamo.config.disable = True  # for both: ours has it so, and compiling one function takes seconds
    ModelRegistry.register_model("AnswersAtOnceForCausalLM", "tests.bench.engine.rollouts.null_model:AnswersAtOnce")
    who, folder, max_batch = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    answer_lines({"ours": ours, "alone": alone}[who](folder, max_batch))


if __name__ == "__main__":
    main()
