"""A model's work on a micro-batch as one module, for trainers whose weights are whole only during a forward pass.

Invariant: everything that reads a model's weights is inside one forward call, including the head over the vocabulary.
"""

from collections.abc import Callable

from torch import Tensor, nn

from engine.models.families.trained_model import TrainedModel
from engine.training.settings import TrainerSettings
from engine.training.step.micro_batch import MicroBatch
from engine.training.step.scoring import ComputeDtype, Critic, TokenScores, computing_in, score_tokens


class PolicyPass(nn.Module):
    def __init__(self, model: TrainedModel, settings: TrainerSettings) -> None:
        super().__init__()
        self.model = model
        self._settings = settings

    def forward(self, batch: MicroBatch) -> tuple[Tensor, Tensor, Tensor]:
        settings = self._settings
        scores = score_tokens(
            self.model,
            batch,
            temperature=settings.temperature,
            compute_dtype=settings.trainer.compute_dtype,
            train_entropy=settings.algorithm.entropy_coefficient > 0.0,
        )
        return scores.logprobs_N, scores.entropy_N, scores.logits_N2


class CriticPass(nn.Module):
    def __init__(self, critic: Critic, settings: TrainerSettings) -> None:
        super().__init__()
        self.critic = critic
        self._compute_dtype: ComputeDtype | None = settings.trainer.compute_dtype

    def forward(self, batch: MicroBatch) -> Tensor:
        with computing_in(self._compute_dtype, batch.targets_N.device):
            values_N: Tensor = self.critic(batch)
        return values_N


def scores_of(forward: Callable[..., tuple[Tensor, Tensor, Tensor]]) -> Callable[[MicroBatch], TokenScores]:
    def scores(batch: MicroBatch) -> TokenScores:
        logprobs_N, entropy_N, logits_N2 = forward(batch)
        return TokenScores(logprobs_N=logprobs_N, entropy_N=entropy_N, logits_N2=logits_N2)

    return scores
