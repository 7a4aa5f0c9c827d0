"""`python -m engine.models.make_random SHAPE --to FOLDER`: a folder with a public model's shape and random weights.

For measuring memory, time and disk at that size without the model's weights; the model cannot learn anything. The
tokenizer is the built-in model's, with meaningless words added up to the vocabulary's size.

Invariant: one layer is in memory at a time and has its own file, so a model of any size can be made.
"""

import argparse
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.fit.known_models import KNOWN_CONFIGS
from engine.models.loading import DEMO_FOLDER, DTYPES, INDEX_FILE, read_config

STD: Final = 0.02
SEED: Final = 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m engine.models.make_random", description=__doc__)
    parser.add_argument("shape", choices=KNOWN_CONFIGS)
    parser.add_argument("--to", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--layers", type=int, default=None, help="fewer than the model has")
    arguments = parser.parse_args()
    changes = {} if arguments.layers is None else {"num_hidden_layers": arguments.layers}
    make_random(arguments.to, {**KNOWN_CONFIGS[arguments.shape], **changes})
    return 0


def make_random(folder: Path, config: Mapping[str, Any]) -> None:
    """`config`: the content of config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", {**config, "eos_token_id": 2, "pad_token_id": 0, "hidden_act": "silu"})
    for name in ("generation_config.json", "tokenizer_config.json"):
        shutil.copy(DEMO_FOLDER / name, folder / name)
    _write_json(folder / "tokenizer.json", _add_words(json.loads((DEMO_FOLDER / "tokenizer.json").read_text()), config))
    chance = torch.Generator().manual_seed(SEED)
    weight_map: dict[str, str] = {}
    num_bytes = 0
    for number, tensors in enumerate(_draw_layers(folder, chance)):
        file = f"model-{number:05}.safetensors"
        save_file(tensors, folder / file, {"format": "pt"})
        weight_map |= dict.fromkeys(tensors, file)
        num_bytes += sum(tensor.nbytes for tensor in tensors.values())
    _write_json(folder / INDEX_FILE, {"metadata": {"total_size": num_bytes}, "weight_map": weight_map})


def _draw_layers(folder: Path, chance: torch.Generator) -> Iterator[dict[str, Tensor]]:
    """First the tensors outside the layers, then layer by layer, under the names that the decoder reads."""
    from engine.models.decoder import Decoder
    from engine.models.loading import model_tensors

    config = read_config(folder)
    dtype = DTYPES[json.loads((folder / "config.json").read_text())["dtype"]]
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in model_tensors(Decoder(config, dtype)).items()}
    for number in (None, *range(config.num_layers)):
        prefix = f"model.layers.{number}."
        named = {
            name: shape
            for name, shape in shapes.items()
            if (name.startswith(prefix) if number is not None else not name.startswith("model.layers."))
        }
        yield {name: _draw_tensor(name, shape, dtype, chance) for name, shape in named.items()}


def _draw_tensor(name: str, shape: torch.Size, dtype: torch.dtype, chance: torch.Generator) -> Tensor:
    if name.endswith("norm.weight"):
        return torch.ones(shape, dtype=dtype)
    return torch.empty(shape, dtype=dtype).normal_(std=STD, generator=chance)


def _add_words(tokenizer: dict[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary |= {f"word{number}": number for number in range(len(vocabulary), config["vocab_size"])}
    return tokenizer


def _write_json(file: Path, content: object) -> None:
    file.write_text(json.dumps(content))


if __name__ == "__main__":
    raise SystemExit(main())
