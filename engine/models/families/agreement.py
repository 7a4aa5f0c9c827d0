"""Checks that a model's configuration, tokenizer and tensors agree. Reads only the headers of weight files, so it takes
little memory and time, however large the model is.

Invariant: a disagreement is a ValueError that names the file, the value found and the values accepted. An accepted
model has every weight that its configuration requires, in its shape, and no others; every id of its tokenizer is a row
of its tables; and tokenizer and configuration have the same end token.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open

from engine.models.families.trained_model import ModelConfig, empty_model, public_views, read_model_config
from engine.models.loading import INDEX_FILE, weight_files
from engine.models.tokenizer import read_eos_ids
from engine.models.vocabulary import WordsOf

Shapes = Mapping[str, tuple[int, ...]]

STORED_IN: Final = ("F32", "BF16", "F16")
SPECIAL: Final = ("bos_token_id", "eos_token_id", "pad_token_id")
HEAD: Final = "lm_head.weight"
TABLES: Final = ".rotary_emb.inv_freq"  # in older files; models compute these tables themselves
SHOWN: Final = 5


def check_folder(folder: Path, *, words_of: WordsOf) -> ModelConfig:
    """Raises `ValueError`."""
    config = read_model_config(folder)
    _check_tokenizer(folder, config, words_of)
    _check_tensors(_read_stored_shapes(folder), _find_expected_shapes(config), config)
    return config


# The tokenizer ---------------------------------------------------------------------------------------------------


def _check_tokenizer(folder: Path, config: ModelConfig, words_of: WordsOf) -> None:
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise ValueError(f"{folder}: a model needs a tokenizer.json")
    ids = words_of(folder)
    last = max(ids.values(), default=-1)
    if last >= config.vocab_size:
        raise ValueError(f"tokenizer.json: ids must be below config.json's vocab_size, {config.vocab_size}, got {last}")
    known = set(ids.values())
    for name, field, value in _read_special_ids(folder):
        if value not in known:
            raise ValueError(f"{name}: {field} must be the id of a token of tokenizer.json, got {value}")
    end = _read_end_word(folder)
    if end is not None and end in ids and ids[end] not in (ends := read_eos_ids(folder)):
        raise ValueError(
            f"tokenizer_config.json: eos_token must be one of the end tokens of generation_config.json or config.json, "
            f"{', '.join(map(str, ends))}; got {end!r}, which is {ids[end]}"
        )


def _read_special_ids(folder: Path) -> Iterator[tuple[str, str, int]]:
    """Yields file, field and id; -1 means none in older files."""
    for name in ("config.json", "generation_config.json"):
        settings = _read_json(folder / name)
        for field in SPECIAL:
            value = settings.get(field)
            for each in value if isinstance(value, list) else (value,):
                if each is not None and each != -1:
                    yield name, field, each


def _read_end_word(folder: Path) -> str | None:
    end = _read_json(folder / "tokenizer_config.json").get("eos_token")
    return end["content"] if isinstance(end, dict) else end


def _read_json(file: Path) -> dict[str, Any]:
    settings: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
    return settings


# The tensors -----------------------------------------------------------------------------------------------------


def _read_stored_shapes(folder: Path) -> Shapes:
    shapes: dict[str, tuple[int, ...]] = {}
    for file in weight_files(folder):
        if not file.is_file():
            raise ValueError(f"{INDEX_FILE} names {file.name}, which is not in {folder}")
        try:
            with safe_open(file, framework="pt") as stored:
                for name in stored.keys():  # noqa: SIM118
                    part = stored.get_slice(name)
                    if (dtype := part.get_dtype()) not in STORED_IN:
                        raise ValueError(f"{file.name}: {name} must be one of {', '.join(STORED_IN)}, got {dtype}")
                    shapes[name] = tuple(part.get_shape())
        except SafetensorError as error:
            raise ValueError(f"{file.name}: not a complete safetensors file: {error}") from error
    return shapes


def _find_expected_shapes(config: ModelConfig) -> Shapes:
    model = empty_model(config, torch.float32, device=torch.device("cpu"))
    own = {name: parameter.detach() for name, parameter in model.named_parameters()}
    return {name: tuple(tensor.shape) for name, tensor in public_views(config, own).items()}


def _check_tensors(stored: Shapes, expected: Shapes, config: ModelConfig) -> None:
    if missing := sorted(expected.keys() - stored.keys()):
        raise ValueError(f"the weight files lack tensors that config.json requires: {_join_first(missing)}")
    for name, shape in expected.items():
        if stored[name] != shape:
            raise ValueError(f"{name} has shape {stored[name]}, config.json requires {shape}")
    extra = {name for name in stored.keys() - expected.keys() if not name.endswith(TABLES)}
    if others := sorted(extra - ({HEAD} if config.tied else set())):
        raise ValueError(f"the weight files have tensors that config.json does not use: {_join_first(others)}")


def _join_first(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
