"""Tokens per second of the torch engine, of `transformers` generate, and of vLLM if its environment is set up.

The same random Llama, the same prompts, the same number of new tokens, greedy, no end token; one thread. Warm-up is
not counted, prefill is.
"""

import argparse
import contextlib
import itertools
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from engine.inference.port import SamplingParams, SequenceRequest
from engine.models.loading import DEMO_FOLDER
from engine.scorecard.tables import Row, Spread
from tests.bench.engine.report import Report, in_turns
from tests.bench.engine.rollouts.in_vllm import process_of, vllm_python

PROMPT_TOKENS: Final = 16
VOCABULARY: Final = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    name: str
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    """One that vLLM's attention on CPUs knows."""
    mlp: int


SHAPES: Final = (
    Shape(name="0.5M", width=96, layers=4, heads=3, kv_heads=3, head_dim=32, mlp=256),
    Shape(name="2.9M", width=224, layers=5, heads=7, kv_heads=7, head_dim=32, mlp=608),
    Shape(name="15M", width=448, layers=7, heads=7, kv_heads=7, head_dim=64, mlp=1216),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--models", nargs="+", default=["0.5M", "2.9M"], choices=[shape.name for shape in SHAPES])
    parser.add_argument("--vllm-python", default=None, help="the interpreter of vLLM's environment; default: found")


def measure(arguments: argparse.Namespace) -> Report:
    torch.set_num_threads(1)
    rows: list[Row] = []
    remarks = [f"{PROMPT_TOKENS} prompt tokens, {arguments.new_tokens} new ones, greedy, float32, one thread"]
    for shape in [shape for shape in SHAPES if shape.name in arguments.models]:
        with tempfile.TemporaryDirectory() as folder:
            num_parameters = write_model(shape, Path(folder), positions=PROMPT_TOKENS + arguments.new_tokens)
            rows += _rows(shape, num_parameters, Path(folder), arguments, remarks)
    return Report(bench="decode", rows=rows, remarks=list(dict.fromkeys(remarks)))


def _rows(
    shape: Shape, num_parameters: int, folder: Path, arguments: argparse.Namespace, remarks: list[str]
) -> Iterator[Row]:
    with _vllm(folder, arguments, remarks) as vllm:
        for batch in arguments.batches:
            contestants: dict[str, Callable[[], float]] = {
                "torch engine": _torch_engine(folder, batch, arguments.new_tokens),
                "transformers": _transformers(folder, batch, arguments.new_tokens),
                **({} if vllm is None else {"vllm": partial(vllm, batch)}),
            }
            for run in contestants.values():
                run()
            samples = in_turns(contestants, repeats=arguments.repeats)
            baseline = Spread.of(samples["transformers"]).median
            for name, values in samples.items():
                spread = Spread.of(values)
                ratio = {"times_transformers": round(spread.median / baseline, 2)}
                yield {
                    "model": shape.name,
                    "parameters": num_parameters,
                    "batch": batch,
                    "engine": name,
                    **spread.columns("tokens_per_s"),
                    **ratio,
                }


def write_model(shape: Shape, folder: Path, *, positions: int) -> int:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY + 1,
        hidden_size=shape.width,
        intermediate_size=shape.mlp,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=positions + 8,
        eos_token_id=VOCABULARY,  # never generated (see below): every run generates the same number of tokens
        bos_token_id=None,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():  # its logit is 0, and the largest of the others is above that
        model.lm_head.weight[VOCABULARY] = 0.0
    model.save_pretrained(folder)
    shutil.copy(DEMO_FOLDER / "tokenizer.json", folder)  # vLLM's engine requires one; no text is used
    return sum(parameter.numel() for parameter in model.parameters())


_NEXT_PROMPTS = itertools.count()


def prompts(batch: int, prompt_tokens: int = PROMPT_TOKENS) -> list[list[int]]:
    """New ones every time: an engine that remembers prefixes finds nothing to reuse."""
    generator = torch.Generator().manual_seed(next(_NEXT_PROMPTS))
    return torch.randint(1, VOCABULARY - 1, (batch, prompt_tokens), generator=generator).tolist()


def requests(batch: int, new_tokens: int, *, prompt_tokens: int = PROMPT_TOKENS) -> list[SequenceRequest]:
    sampling = SamplingParams(max_new_tokens=new_tokens, temperature=0.0, seed=0)
    return [
        SequenceRequest(sequence_id=str(at), prompt_ids=tuple(ids), sampling=sampling)
        for at, ids in enumerate(prompts(batch, prompt_tokens))
    ]


def timed_engine(engine: Any, batch: int, new_tokens: int) -> float:
    """Any rollout engine behind the port."""
    wanted = requests(batch, new_tokens)
    started = time.perf_counter()
    engine.submit(wanted)
    num_tokens, num_left = 0, batch
    while num_left:
        ended = engine.step()
        num_left -= len(ended)
        num_tokens += sum(len(output.token_ids) for output in ended)
    return num_tokens / (time.perf_counter() - started)


def _torch_engine(folder: Path, batch: int, new_tokens: int) -> Callable[[], float]:
    from engine.inference.torch_engine import TorchRolloutEngine

    engine = TorchRolloutEngine(folder, max_batch=batch, device="cpu")
    return lambda: timed_engine(engine, batch, new_tokens)


def _transformers(folder: Path, batch: int, new_tokens: int) -> Callable[[], float]:
    from transformers import LlamaForCausalLM

    model: Any = LlamaForCausalLM.from_pretrained(folder)

    def run() -> float:
        ids = torch.tensor(prompts(batch))
        started = time.perf_counter()
        with torch.inference_mode():
            said = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=new_tokens, do_sample=False, pad_token_id=0
            )
        return float(batch * (said.shape[1] - PROMPT_TOKENS)) / (time.perf_counter() - started)

    return run


@contextlib.contextmanager
def _vllm(folder: Path, arguments: argparse.Namespace, remarks: list[str]) -> Iterator[Callable[[int], float] | None]:
    python = vllm_python(arguments.vllm_python)
    if python is None:
        remarks.append("vLLM was left out: its environment is not set up here")
        yield None
        return
    words = [str(folder), str(max(arguments.batches)), str(arguments.new_tokens)]
    with process_of(python, "tests.bench.engine.rollouts.decode_vllm", words) as ask:
        yield lambda batch: float(ask({"batch": batch})["tokens_per_s"])
