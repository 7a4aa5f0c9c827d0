"""The course of the learning rate: over the warm-up it rises, then it stays or falls until the job's last step.

    share of the full rate, warmup_steps 2, steps 5, linear to 0.1
    step    1      2      3      4      5      (6)
            0.5    1.0    0.775  0.55   0.325  (0.1)

Invariants:
- a function of the spec and of how many updates have changed the weights: whoever resumes goes on with the same rates,
  and an update that was skipped is none of it. Warm-up and job are given in steps; the rate moves with each update;
- no step is for nothing: the first one has its part already, and what the rate falls to is what the one after the last
  would have;
- after its warm-up the rate never rises. Between jobs it may: one that goes on from another's checkpoint counts steps
  on from there, and has the rate that its own `training.steps` give to that step.
"""

import math

from engine.training.settings import TrainerSettings


def share_of_rate(settings: TrainerSettings, num_updates: int) -> float:
    """Of the next update, with `num_updates` behind it."""
    optimizer = settings.optimizer
    highest = max(optimizer.warmup_steps * settings.updates_a_step, 1)
    update = num_updates + 1
    if update <= highest or optimizer.course == "constant":
        return min(update / highest, 1.0)
    gone = min((update - highest) / (settings.num_steps * settings.updates_a_step + 1 - highest), 1.0)
    left = 1.0 - gone if optimizer.course == "linear" else (1.0 + math.cos(math.pi * gone)) / 2.0
    return optimizer.final_share + (1.0 - optimizer.final_share) * left
