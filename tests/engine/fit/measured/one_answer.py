"""A micro-batch that is one answer, as long as a pass may be: what memory is measured with."""

from engine.training.port import TrainingTrajectory
from engine.training.step.micro_batch import MicroBatch, batch_step


def one_answer(num_tokens: int, *, device: str = "cpu") -> MicroBatch:
    """And a prompt of one token."""
    answer = TrainingTrajectory(
        group=0,
        prompt_ids=(1,),
        response_ids=(2,) * num_tokens,
        behaviour_logprobs=(0.0,) * num_tokens,
        reward=1.0,
    )
    [batch] = batch_step([answer], max_tokens=num_tokens + 1, device=device).micro_batches
    return batch
