"""Builders for tests of rollout engines: small random models, requests, and the answers of `transformers` to them.

Nothing of pytest's plugins and nothing heavy at import, since vLLM's own environment imports this too.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

import torch
from torch import Tensor

from engine.inference.port import RolloutEngine, SamplingParams, SequenceOutput, SequenceProgress, SequenceRequest
from engine.policy.lineage import WeightsId
from engine.weights.low_rank import fingerprint, names_of
from engine.weights.port import LowRank, WeightVersion
from engine.weights.snapshot import map_weights, pack_weights

VOCAB_SIZE: Final = 64
EOS: Final = 3
MAX_POSITIONS: Final = 256
LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"
MAX_STEPS: Final = 5_000  # an engine that never ends is a failed test, not a hanging one

Layout = Literal["llama", "llama3", "yarn", "qwen2", "qwen3", "qwen3_moe"]
MakeEngine = Callable[..., RolloutEngine]


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A folder, and its model in `transformers`, which no test changes."""

    folder: Path
    model: Any
    answers: dict[tuple[tuple[int, ...], int], tuple[int, ...]] = field(
        init=False, default_factory=dict, repr=False, compare=False
    )
    """A cache of greedy answers: computing them took longer than all engines together."""
    others: dict[tuple[str, int], "tuple[WeightVersion, Reference]"] = field(
        init=False, default_factory=dict, repr=False, compare=False
    )
    """Variants of the model, by kind and version."""

    def greedy(self, prompt: Sequence[int], num_tokens: int) -> tuple[int, ...]:
        key = tuple(prompt), num_tokens
        if key not in self.answers:
            with torch.no_grad():
                ids = self.model.generate(torch.tensor([prompt]), max_new_tokens=num_tokens, do_sample=False)
            self.answers[key] = tuple(ids[0, len(prompt) :].tolist())
        return self.answers[key]

    def logits(self, ids: Sequence[int]) -> Tensor:
        """Row i has the logits after ids[: i + 1]."""
        with torch.no_grad():
            logits_NV: Tensor = self.model(torch.tensor([ids])).logits[0].float()
        return logits_NV

    def logprobs(self, prompt: Sequence[int], answer: Sequence[int], temperature: float) -> list[float]:
        logits_NV = self.logits([*prompt, *answer])[len(prompt) - 1 : -1] / temperature
        return torch.log_softmax(logits_NV, -1).gather(1, torch.tensor(answer).unsqueeze(1)).squeeze(1).tolist()

    def text(self, ids: Sequence[int]) -> str:
        return "".join(word_of(token) for token in ids)


def word_of(token: int) -> str:
    """Two letters a token, so that a stop string can end within one."""
    return LETTERS[token // 26] + LETTERS[token % 26]


def make_model(
    folder: Path, *, layout: Layout = "llama", tied: bool = False, kv_heads: int = 2, expert_width: int = 24
) -> Reference:
    """Far from uniform, so that greedy choices are clear. The heads' width is one that vLLM's CPU kernels support."""
    model = _random_model(layout, tied=tied, kv_heads=kv_heads, expert_width=expert_width)
    model.save_pretrained(folder)
    _save_tokenizer(folder)
    return Reference(folder=folder, model=model)


def perturbed(reference: Reference, *, version: int) -> tuple[WeightVersion, Reference]:
    """Other weights for the same folder, and their `transformers` model."""
    if ("perturbed", version) not in reference.others:
        reference.others["perturbed", version] = _perturbed(reference, version)
    return reference.others["perturbed", version]


def adapted(reference: Reference, *, version: int) -> tuple[WeightVersion, Reference]:
    """An adapter for the same folder, of all matrices but experts', and its `transformers` model."""
    if ("adapted", version) not in reference.others:
        reference.others["adapted", version] = _adapted(reference, version)
    return reference.others["adapted", version]


def _perturbed(reference: Reference, version: int) -> tuple[WeightVersion, Reference]:
    import json
    import tempfile

    from safetensors.torch import load_file, save_file

    generator = torch.Generator().manual_seed(version)
    stored = load_file(reference.folder / "model.safetensors")
    changed = {name: value + 0.1 * torch.randn(value.shape, generator=generator) for name, value in stored.items()}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(reference.model.config.to_dict()))
        save_file(changed, Path(folder) / "model.safetensors", {"format": "pt"})
        model = type(reference.model).from_pretrained(folder).eval()
    return pack_weights(changed, weights=WeightsId(0, version)), Reference(folder=reference.folder, model=model)


def _adapted(reference: Reference, version: int) -> tuple[WeightVersion, Reference]:
    import copy

    from safetensors.torch import load_file

    generator = torch.Generator().manual_seed(version)
    stored = load_file(reference.folder / "model.safetensors")
    given: dict[str, Tensor] = {}
    for name in [name for name in stored if name.endswith("_proj.weight") and ".experts." not in name]:
        (rows, columns), of = stored[name].shape, names_of(name.removesuffix(".weight"))
        for which, shape in zip(of, ((3, columns), (rows, 3)), strict=True):
            given[which] = 0.3 * torch.randn(shape, generator=generator)
        update = 0.5 * (given[of[1]] @ given[of[0]])
        stored[name] = (stored[name].float() + update).to(stored[name].dtype)
    model = copy.deepcopy(reference.model)
    model.load_state_dict(stored, strict=False)
    model.tie_weights()
    low_rank = LowRank(base=fingerprint(reference.folder), scale=0.5)
    packed = pack_weights(given, weights=WeightsId(0, version), low_rank=low_rank)
    return packed, Reference(folder=reference.folder, model=model)


def own_weights(reference: Reference, *, version: int) -> WeightVersion:
    from safetensors.torch import load_file

    return pack_weights(load_file(reference.folder / "model.safetensors"), weights=WeightsId(0, version))


def with_halves_swapped(version: WeightVersion, name: str) -> WeightVersion:
    """Swaps the halves of a tensor, as if its shards had been cut in another order."""
    tensors = {each: tensor.clone() for each, tensor in map_weights(version).items()}
    tensors[name] = tensors[name].roll(len(tensors[name]) // 2, dims=0)
    return pack_weights(tensors, weights=version.manifest.weights)


def without_sums(version: WeightVersion) -> WeightVersion:
    """Without sums, as from a trainer that publishes none: the engine then compares nothing."""
    return replace(version, manifest=replace(version.manifest, sums=()))


def make_family(folder: Path, variant: str) -> Reference:
    """A model of another family in transformers, with heads of the same width."""
    from transformers import AutoModelForCausalLM

    from tests.engine.models.families.tiny import save_tiny

    save_tiny(folder, variant, vocab_size=VOCAB_SIZE, hidden_size=128, max_position_embeddings=MAX_POSITIONS)
    _save_tokenizer(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    return Reference(folder=folder, model=model.eval())


def _random_model(layout: Layout, *, tied: bool, kv_heads: int, expert_width: int) -> Any:
    from transformers import (
        LlamaConfig,
        LlamaForCausalLM,
        Qwen2Config,
        Qwen2ForCausalLM,
        Qwen3Config,
        Qwen3ForCausalLM,
        Qwen3MoeConfig,
        Qwen3MoeForCausalLM,
    )

    torch.manual_seed(0)
    rope: dict[str, object] = {"rope_type": "default", "rope_theta": 500.0}
    if layout == "llama3":
        rope |= {
            "rope_type": "llama3",
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    if layout == "yarn":
        rope |= {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    settings: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": MAX_POSITIONS,
        "rope_parameters": rope,
        "tie_word_embeddings": tied,
        "initializer_range": 0.3,
        "bos_token_id": None,
        "eos_token_id": EOS,
        "pad_token_id": 0,
    }
    if layout == "qwen2":  # its heads always divide the width
        model: Any = Qwen2ForCausalLM(Qwen2Config(**settings | {"hidden_size": 128}))
    elif layout == "qwen3":
        model = Qwen3ForCausalLM(Qwen3Config(**settings, head_dim=32))
    elif layout == "qwen3_moe":  # the second of three layers is dense
        mixture = {"num_experts": 6, "num_experts_per_tok": 2, "norm_topk_prob": True}
        mixture |= {"moe_intermediate_size": expert_width}
        layers = {"num_hidden_layers": 3, "mlp_only_layers": [1], "head_dim": 32}
        model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**settings | layers | mixture))
    else:
        model = LlamaForCausalLM(LlamaConfig(**settings, head_dim=32))
    for name, parameter in model.named_parameters():
        if name.endswith((".bias", "norm.weight")):  # initialized with zeros and ones, which would hide errors
            with torch.no_grad():
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


def _save_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.WordLevel({word_of(token): token for token in range(VOCAB_SIZE)}, unk_token=word_of(0)))
    raw.pre_tokenizer = pre_tokenizers.Split("", behavior="isolated")
    raw.decoder = decoders.Fuse()
    wrapped: Any = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=raw, eos_token=word_of(EOS), pad_token=word_of(0), unk_token=word_of(0)
    )
    wrapped.save_pretrained(folder)


def ask(
    name: str,
    prompt: Sequence[int],
    *,
    temperature: float = 0.0,
    new: int = 24,
    seed: int = 0,
    top_p: float = 1.0,
    top_k: int = 0,
    min_p: float = 0.0,
    stop: tuple[str, ...] = (),
    progress: SequenceProgress | None = None,
) -> SequenceRequest:
    sampling = SamplingParams(
        max_new_tokens=new, temperature=temperature, seed=seed, top_p=top_p, top_k=top_k, min_p=min_p, stop=stop
    )
    return SequenceRequest(sequence_id=name, prompt_ids=tuple(prompt), sampling=sampling, progress=progress)


def finish(engine: RolloutEngine) -> dict[str, SequenceOutput]:
    outputs: dict[str, SequenceOutput] = {}
    for _ in range(MAX_STEPS):
        view = engine.view()
        if not view.num_running + view.num_waiting:
            return outputs
        for output in engine.step():
            assert output.sequence_id not in outputs
            outputs[output.sequence_id] = output
    raise AssertionError(f"still in flight after {MAX_STEPS} steps: {engine.view()}")


def answer(engine: RolloutEngine, request: SequenceRequest) -> SequenceOutput:
    engine.submit([request])
    return finish(engine)[request.sequence_id]


def step_until(engine: RolloutEngine, name: str, num_tokens: int) -> int:
    """Steps until this sequence has at least `num_tokens` tokens; returns their number."""
    for _ in range(MAX_STEPS):
        (now,) = engine.export([name], leave=False, with_kv=False)
        if now.progress is not None and len(now.progress.token_ids) >= num_tokens:
            return len(now.progress.token_ids)
        assert not engine.step(), "the sequence ended before it had that many tokens"
    raise AssertionError(f"{name} did not say {num_tokens} tokens in {MAX_STEPS} steps")


def chi_square_excess(counts: Iterable[int], expected: Iterable[float]) -> float:
    """Standard deviations of the statistic above its mean (Wilson and Hilferty). Rare values share one bin."""
    pairs = sorted(zip(expected, counts, strict=True))
    bins: list[tuple[float, int]] = [(0.0, 0)]
    for mean, count in pairs:
        last_mean, last_count = bins[-1]
        if last_mean < 5.0:
            bins[-1] = (last_mean + mean, last_count + count)
        else:
            bins.append((mean, count))
    degrees = len(bins) - 1
    statistic = sum((count - mean) ** 2 / mean for mean, count in bins)
    spread = 2.0 / (9.0 * degrees)
    root: float = (statistic / degrees) ** (1 / 3)
    return (root - (1.0 - spread)) / math.sqrt(spread)
