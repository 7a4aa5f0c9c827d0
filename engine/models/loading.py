"""Loading a decoder from a Hugging Face folder and saving it: config.json, model.safetensors, tensor names.

Invariants:
- a saved decoder loads again bit for bit, here and in `transformers`;
- a setting that this decoder does not support is refused, never ignored;
- tied weights are stored once.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from engine.models.decoder import Decoder, DecoderConfig
from engine.models.mixture import MixtureShape
from engine.models.pieces import read_pieces
from engine.models.rotary import STRETCHES, read_stretch
from engine.models.windows import read_windows

DEMO_FOLDER: Final = Path(__file__).resolve().parent / "demo"
WEIGHTS_FILE: Final = "model.safetensors"
INDEX_FILE: Final = "model.safetensors.index.json"  # of models in several files: maps tensors to files
MODEL_TYPES: Final = ("llama", "mistral", "qwen2", "qwen3", "qwen3_moe")
SHARED_EXPERTS: Final = ("shared_expert_intermediate_size", "n_shared_experts", "num_shared_experts")
MAX_EXPERTS: Final = 32_767  # routes are 16-bit numbers, one of which means "unknown"
DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

# The files that a folder needs in addition to its weights.
COMPANION_FILES: Final = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)


def resolve_model(source: str) -> Path:
    folder = DEMO_FOLDER if source == "demo" else Path(source)
    has_weights = (folder / WEIGHTS_FILE).is_file() or (folder / INDEX_FILE).is_file()
    if not (folder / "config.json").is_file() or not has_weights:
        raise ValueError(
            f"model.source must be 'demo', or a folder with config.json and {WEIGHTS_FILE} that this machine can read; "
            f"got {source!r}"
        )
    return folder


def load_decoder(folder: Path, *, device: str, dtype: torch.dtype | None = None, leaves_empty: bool = False) -> Decoder:
    """`dtype`: by default as stored. `leaves_empty`: allocates the weights without loading them."""
    config = read_config(folder)
    with torch.device(device):
        model = Decoder(config, dtype or config.dtype)
    if not leaves_empty:
        load_weights(model, folder)
    return model


def load_weights(model: Decoder, folder: Path) -> None:
    fill_tensors(model_tensors(model), folder)


def fill_tensors(targets: Mapping[str, Tensor], folder: Path) -> None:
    """Fills `targets`, keyed by Hugging Face names."""
    missing = set(targets)
    with torch.no_grad():
        for file in weight_files(folder):
            with safe_open(file, framework="pt") as stored:
                for name in missing.intersection(stored.keys()):
                    _fill_tensor(targets[name], stored, name, file)
                    missing.discard(name)
    if missing:
        raise ValueError(f"{folder}: the weight files lack tensors: {', '.join(sorted(missing)[:5])}")


def _fill_tensor(target: Tensor, stored: Any, name: str, file: Path) -> None:
    shape = tuple(stored.get_slice(name).get_shape())
    if shape != tuple(target.shape):
        raise ValueError(f"{file.name}: {name} has shape {shape}, config.json requires {tuple(target.shape)}")
    for rows, piece in read_pieces(stored, name, target.nbytes):
        if rows == slice(None):
            target.copy_(piece)
        else:
            target[rows].copy_(piece)


def save_weights(tensors: Mapping[str, Tensor], file: Path) -> None:
    """Copies first: row slices share memory, and a tensor must not change while it is written."""
    save_file(
        {name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()},
        file,
        {"format": "pt"},
    )


def model_tensors(model: Decoder) -> dict[str, Tensor]:
    """Views of the parameters under their Hugging Face names."""
    return hugging_face_views(model.config, {name: value.detach() for name, value in model.named_parameters()})


def hugging_face_views(config: DecoderConfig, own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`own`: tensors shaped like the decoder's parameters, i.e. weights, gradients or an optimizer's moments."""
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    views = {"model.embed_tokens.weight": own["embedding_VD"], "model.norm.weight": own["final_norm_D"]}
    if not config.tied:
        views["lm_head.weight"] = own["head_VD"]
    for index in range(config.num_layers):
        theirs, ours = f"model.layers.{index}.", f"layers.{index}."
        qkv_QD = own[ours + "qkv_QD"]
        views |= {
            theirs + "input_layernorm.weight": own[ours + "attention_norm_D"],
            theirs + "self_attn.q_proj.weight": qkv_QD[:query],
            theirs + "self_attn.k_proj.weight": qkv_QD[query : query + key],
            theirs + "self_attn.v_proj.weight": qkv_QD[query + key :],
            theirs + "self_attn.o_proj.weight": own[ours + "output_DA"],
            theirs + "post_attention_layernorm.weight": own[ours + "mlp_norm_D"],
        }
        if config.mixture is not None and index in config.mixture.layers:
            views |= _mixture_views(config.mixture, config.width, own, theirs + "mlp.", ours + "mixture.")
        else:
            views |= _mlp_views(own[ours + "gate_up_2FD"], own[ours + "down_DF"], theirs + "mlp.")
        if config.qkv_bias:
            qkv_bias_Q = own[ours + "qkv_bias_Q"]
            views |= {
                theirs + "self_attn.q_proj.bias": qkv_bias_Q[:query],
                theirs + "self_attn.k_proj.bias": qkv_bias_Q[query : query + key],
                theirs + "self_attn.v_proj.bias": qkv_bias_Q[query + key :],
            }
        if config.qk_norm:
            views |= {
                theirs + "self_attn.q_norm.weight": own[ours + "query_norm_E"],
                theirs + "self_attn.k_norm.weight": own[ours + "key_norm_E"],
            }
    return views


def _mlp_views(gate_up_2FD: Tensor, down_DF: Tensor, theirs: str) -> dict[str, Tensor]:
    width = len(gate_up_2FD) // 2
    return {
        theirs + "gate_proj.weight": gate_up_2FD[:width],
        theirs + "up_proj.weight": gate_up_2FD[width:],
        theirs + "down_proj.weight": down_DF,
    }


def _mixture_views(
    shape: MixtureShape, width: int, own: Mapping[str, Tensor], theirs: str, ours: str
) -> dict[str, Tensor]:
    views = {theirs + "gate.weight": own[ours + "router.weight_XD"]}
    of_experts = zip(
        torch.split(own[ours + "gate_up_YD"], 2 * shape.expert_width),
        torch.split(own[ours + "down_ZM"], width),
        strict=True,
    )
    for expert, (gate_up_2MD, down_DM) in enumerate(of_experts):
        views |= _mlp_views(gate_up_2MD, down_DM, f"{theirs}experts.{expert}.")
    return views


def companion_files(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in COMPANION_FILES if (folder / name).is_file()}


def read_config(folder: Path) -> DecoderConfig:
    raw: dict[str, Any] = json.loads((folder / "config.json").read_text())
    # transformers 5 nests theta in rope_parameters; older files have it next to `rope_scaling`.
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    model_type = raw.get("model_type")
    _refuse_unsupported_settings(raw, rope)
    dtype = raw.get("dtype") or raw.get("torch_dtype") or "float32"
    if dtype not in DTYPES:
        raise ValueError(f"config.json: dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    num_heads = raw["num_attention_heads"]
    return DecoderConfig(
        vocab_size=raw["vocab_size"],
        width=raw["hidden_size"],
        num_layers=raw["num_hidden_layers"],
        num_heads=num_heads,
        num_kv_heads=raw.get("num_key_value_heads") or (8 if model_type == "mistral" else num_heads),
        head_dim=raw.get("head_dim") or (128 if model_type == "qwen3" else raw["hidden_size"] // num_heads),
        mlp_width=raw["intermediate_size"],
        max_positions=raw.get("max_position_embeddings", 2048),
        rope_theta=float(rope.get("rope_theta") or raw.get("rope_theta") or 10_000.0),
        norm_eps=raw.get("rms_norm_eps", 1e-6),
        tied=bool(raw.get("tie_word_embeddings", False)),
        dtype=DTYPES[dtype],
        qkv_bias=model_type == "qwen2",
        qk_norm=model_type in ("qwen3", "qwen3_moe"),
        rope_stretch=read_stretch(rope),
        mixture=_read_mixture(raw) if model_type == "qwen3_moe" else None,
        sliding=read_windows(raw),
    )


def _refuse_unsupported_settings(raw: dict[str, Any], rope: dict[str, Any]) -> None:
    _refuse_unless("model_type", raw.get("model_type"), *MODEL_TYPES)
    _refuse_unless("hidden_act", raw.get("hidden_act", "silu"), "silu")
    _refuse_unless("attention_bias", bool(raw.get("attention_bias", False)), False)  # Qwen2 has its biases without it
    _refuse_unless("mlp_bias", bool(raw.get("mlp_bias", False)), False)
    _refuse_unless("partial_rotary_factor", rope.get("partial_rotary_factor") or 1.0, 1.0)
    _refuse_unless("rope type", rope.get("rope_type") or rope.get("type") or "default", *STRETCHES)


def _read_mixture(raw: dict[str, Any]) -> MixtureShape | None:
    """Ignores `router_aux_loss_coef`, which balances experts in pretraining and is part of no loss here."""
    # transformers 5 writes num_local_experts, published folders have num_experts.
    num_experts = _read_count(raw, "num_experts" if "num_experts" in raw else "num_local_experts", at_most=MAX_EXPERTS)
    step, dense = _read_count(raw, "decoder_sparse_step", default=1), raw.get("mlp_only_layers") or ()
    layers = tuple(index for index in range(raw["num_hidden_layers"]) if (index + 1) % step == 0 and index not in dense)
    for field in SHARED_EXPERTS:
        _refuse_unless(field, raw.get(field) or 0, 0)
    shape = MixtureShape(
        num_experts=num_experts,
        chosen=_read_count(raw, "num_experts_per_tok", at_most=num_experts),
        expert_width=_read_count(raw, "moe_intermediate_size"),
        renormalised=bool(raw.get("norm_topk_prob", False)),
        layers=layers,
    )
    return shape if layers else None


def _read_count(raw: dict[str, Any], field: str, *, at_most: int | None = None, default: int | None = None) -> int:
    value = raw.get(field, default)
    if not isinstance(value, int) or value < 1 or (at_most is not None and value > at_most):
        accepted = "1 or more" if at_most is None else f"from 1 to {at_most}"
        raise ValueError(f"config.json: {field} must be {accepted} for this decoder, got {value!r}")
    return value


def _refuse_unless(field: str, value: object, *accepted: object) -> None:
    if value not in accepted:
        choices = " or ".join(map(repr, accepted))
        raise ValueError(f"config.json: {field} must be {choices} for this decoder, got {value!r}")


def weight_files(folder: Path) -> list[Path]:
    index = folder / INDEX_FILE
    if index.is_file():
        return sorted({folder / name for name in json.loads(index.read_text())["weight_map"].values()})
    return [folder / WEIGHTS_FILE]
