"""Reference GRPO steps by AdamW: transformers' own forward pass, answer by answer, and the paper's formulas."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.spec.job import OptimizerSpec
from engine.training.port import TrainingTrajectory


def first_step_by_hand(folder: Path, batch: list[TrainingTrajectory], *, lr: float, decay: float) -> dict[str, Tensor]:
    """Weights after one step, and masks (`NAME.steep`) of where they can be compared."""
    model = _load_model(folder)
    _backward(model, batch)
    after: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        decayed = parameter * (1 - lr * decay) if parameter.dim() > 1 else parameter
        # On the first step, bias correction turns both moments into the gradient and its square.
        stepped = (decayed - lr * parameter.grad / (parameter.grad.abs() + 1e-8)).detach()
        after |= _name_publicly(name, stepped)
        steep = parameter.grad.abs() > 1e-5  # elsewhere rounding decides the sign
        after |= {f"{public}.steep": values for public, values in _name_publicly(name, steep).items()}
    return after


@torch.no_grad()
def steps_by_hand(
    folder: Path, batches: list[list[TrainingTrajectory]], rates: list[float], spec: OptimizerSpec
) -> dict[str, Tensor]:
    """Weights after one step per batch, by algorithm 2 of arXiv 1711.05101."""
    model = _load_model(folder)
    means = {name: torch.zeros_like(parameter) for name, parameter in model.named_parameters()}
    squares = {name: torch.zeros_like(parameter) for name, parameter in model.named_parameters()}
    for number, (batch, rate) in enumerate(zip(batches, rates, strict=True), start=1):
        _backward(model, batch)
        for name, parameter in model.named_parameters():
            means[name] = spec.beta1 * means[name] + (1 - spec.beta1) * parameter.grad
            squares[name] = spec.beta2 * squares[name] + (1 - spec.beta2) * parameter.grad**2
            mean = means[name] / (1 - spec.beta1**number)
            root = (squares[name] / (1 - spec.beta2**number)).sqrt()
            decay = spec.weight_decay if parameter.dim() > 1 else 0.0
            parameter -= rate * (mean / (root + spec.eps) + decay * parameter)
    named = (_name_publicly(name, parameter.detach()) for name, parameter in model.named_parameters())
    return {name: values for each in named for name, values in each.items()}


def _name_publicly(name: str, values: Tensor) -> dict[str, Tensor]:
    """Values by public names; transformers holds a mixture's experts in one tensor."""
    if ".experts." not in name:
        return {name: values}
    prefix, _, kind = name.rpartition(".")
    tensors: dict[str, Tensor] = {}
    for expert, rows in enumerate(values):
        kinds = zip(("gate_proj", "up_proj"), rows.chunk(2), strict=True) if kind == "gate_up_proj" else ((kind, rows),)
        tensors |= {f"{prefix}.{expert}.{each}.weight": part for each, part in kinds}
    return tensors


def _load_model(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


@torch.enable_grad()
def _backward(model: Any, batch: list[TrainingTrajectory]) -> None:
    """With the default correction, and gradients clipped to a norm of 1."""
    model.zero_grad()
    total = torch.zeros(())
    for each in batch:
        rewards = torch.tensor([other.reward for other in batch if other.group == each.group])
        advantage = (each.reward - rewards.mean()) / (rewards.std() + 1e-6)
        ids = torch.tensor([each.prompt_ids + each.response_ids])
        logprobs = model(ids).logits.log_softmax(-1)[0, len(each.prompt_ids) - 1 : -1]
        own = logprobs.gather(1, torch.tensor(each.response_ids).unsqueeze(1)).squeeze(1)
        weight = (own.detach() - torch.tensor(each.behaviour_logprobs)).exp().clamp(max=2.0)
        total = total - (weight * advantage * own).mean() / len(batch)
    total.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
