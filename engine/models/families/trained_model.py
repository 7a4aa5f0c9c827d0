"""The model that a trainer trains: this project's decoder where it supports the folder's configuration, transformers'
layers otherwise (engine/models/decisions.md).

Both have a forward pass over packed tokens that ends before the last norm, `normed`, `head_VD`, `layers`,
`hold_activations`, `drop_head`, `num_parameters`, `num_active_parameters`, and a `config` with the facts that trainers
need.

Invariant: names and shapes of a model's public tensors do not depend on the implementation.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from engine.models.decoder import Decoder, DecoderConfig
from engine.models.families.family_model import FamilyModel
from engine.models.families.settings import FAMILIES, FamilyConfig
from engine.models.loading import MODEL_TYPES, fill_tensors, hugging_face_views, load_decoder, read_config
from engine.models.rotary import rotary_tables

ModelConfig = DecoderConfig | FamilyConfig
TrainedModel = Decoder | FamilyModel


def read_model_config(folder: Path) -> ModelConfig:
    """Raises `ValueError`."""
    model_type = json.loads((folder / "config.json").read_text()).get("model_type")
    if model_type not in MODEL_TYPES:
        if model_type not in FAMILIES:
            known = ", ".join(sorted({*MODEL_TYPES, *FAMILIES}))
            raise ValueError(f"config.json: model_type must be one of {known}, got {model_type!r}")
        return FamilyConfig.read(folder)
    try:
        return read_config(folder)
    except ValueError:
        if model_type not in FAMILIES:
            raise
        return FamilyConfig.read(folder)


def empty_model(config: ModelConfig, dtype: torch.dtype, *, device: torch.device) -> TrainedModel:
    """Weights have no memory yet; the rotary tables are on `device`."""
    if isinstance(config, FamilyConfig):
        return FamilyModel(config, dtype, device=device)
    with torch.device("meta"):
        model = Decoder(config, dtype)
    with torch.device(device):
        model.cos_PE, model.sin_PE = rotary_tables(config)
    return model


def load_model(folder: Path, *, device: str, dtype: torch.dtype | None = None) -> TrainedModel:
    """`dtype`: by default as stored."""
    config, target = read_model_config(folder), torch.device(device)
    if isinstance(config, DecoderConfig):
        return load_decoder(folder, device=device, dtype=dtype)
    model = FamilyModel(config, dtype or config.dtype, device=target).with_memory(target)
    load_weights(model, folder)
    return model


def load_weights(model: TrainedModel, folder: Path) -> None:
    fill_tensors(public_tensors(model), folder)


def public_tensors(model: TrainedModel) -> dict[str, Tensor]:
    """Views of the parameters under their public names."""
    return public_views(model.config, {name: value.detach() for name, value in model.named_parameters()})


def public_views(config: ModelConfig, own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`own`: tensors shaped like the model's parameters, i.e. weights, gradients or an optimizer's moments."""
    return dict(own) if isinstance(config, FamilyConfig) else hugging_face_views(config, own)
