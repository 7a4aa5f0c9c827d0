"""A family's model over packed tokens: transformers' own embedding, layers, norm and head, with the interface of the
decoder.

    T tokens of all sequences, one after the other    N rows    D width    V vocabulary

The forward pass calls the layers one by one, as transformers' own does, so that the caller chooses what they save for
the backward pass, as with the decoder.

Invariants:
- parameters have the names of the family's files, which are the public names;
- tied weights are one parameter.
"""

from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from engine.models.decoder import Activations, Attend
from engine.models.families.attention import register
from engine.models.families.settings import FamilyConfig
from engine.models.mixture import Choose, freely
from engine.process.progress import report_layer_progress


class FamilyModel(nn.Module):
    activations: Activations = "kept"

    def __init__(self, config: FamilyConfig, dtype: torch.dtype, *, device: torch.device) -> None:
        """Weights have no memory yet; the rotary tables are on `device`."""
        super().__init__()
        from transformers import AutoModel

        register()
        self.config = config
        theirs = config.for_transformers()
        with torch.device("meta"):
            self.model: Any = AutoModel.from_config(theirs, dtype=dtype)  # type: ignore[no-untyped-call]
            self.lm_head = None if config.tied else nn.Linear(config.width, config.vocab_size, bias=False, dtype=dtype)
        with torch.device(device):
            self.model.rotary_emb = type(self.model.rotary_emb)(theirs)
        empty = [name for name, buffer in self.named_buffers() if buffer.is_meta]
        assert not empty, f"buffers without values: {empty}"

    def forward(self, ids_T: Tensor, positions_T: Tensor, attend: Attend, choose: Choose = freely) -> Tensor:
        """The last layer's output, before the final norm. Ignores `choose`: families have no mixtures."""
        x_1TD = functional.embedding(ids_T, self.embedding_VD).unsqueeze(0)
        positions_1T = positions_T.unsqueeze(0)
        given: dict[str, Any] = {
            "attention_mask": None,
            "position_ids": positions_1T,
            "position_embeddings": self.model.rotary_emb(x_1TD, position_ids=positions_1T),
            "attend": attend,
        }
        if self.activations == "kept" or not torch.is_grad_enabled():
            for layer in self.layers:
                report_layer_progress(x_1TD)
                x_1TD = layer(x_1TD, **given)
            return x_1TD.squeeze(0)
        with save_on_cpu(pin_memory=x_1TD.is_cuda) if self.activations == "offloaded" else nullcontext():
            for layer in self.layers:
                report_layer_progress(x_1TD)
                x_1TD = checkpoint(partial(layer, **given), x_1TD, use_reentrant=False, preserve_rng_state=False)
        return x_1TD.squeeze(0)

    def hold_activations(self, how: Activations) -> None:
        self.activations = how

    def with_memory(self, device: torch.device) -> "FamilyModel":
        """Allocates memory, without values, for weights that have none."""
        self._apply(lambda each: torch.empty_like(each, device=device) if each.is_meta else each)  # type: ignore[no-untyped-call]
        return self

    def normed(self, x_ND: Tensor) -> Tensor:
        """The head's input."""
        normed_ND: Tensor = self.model.norm(x_ND)
        return normed_ND

    def drop_head(self) -> None:
        """Frees the head of a model that predicts no tokens (a critic)."""
        self.lm_head = None

    @property
    def layers(self) -> nn.ModuleList:
        layers: nn.ModuleList = self.model.layers
        return layers

    @property
    def embedding_VD(self) -> nn.Parameter:
        weight: nn.Parameter = self.model.embed_tokens.weight
        return weight

    @property
    def head_VD(self) -> Tensor:
        return self.embedding_VD if self.lm_head is None else self.lm_head.weight

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())

    @property
    def num_active_parameters(self) -> int:
        return self.num_parameters
