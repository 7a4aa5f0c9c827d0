"""The learning rate schedule: rises over the warm-up, then stays or falls until the job's last step.

    share of the full rate, warmup_steps 2, steps 5, linear to 0.1
    step    1      2      3      4      5      (6)
            0.5    1.0    0.775  0.55   0.325  (0.1)

Invariants:
- the rate depends only on the spec and the number of updates that changed the weights: a resumed job continues with the
  same rates, and skipped updates do not count. Warm-up and job are given in steps; the rate changes with each update;
- no step has rate 0: the first one already has its share, and the final rate would be that of the step after the last;
- within a job, the rate never rises after the warm-up. Between jobs it may: a job that continues from another's
  checkpoint continues its count of steps, and has the rate that its own `training.steps` gives to that step.
"""

import math

from engine.training.settings import TrainerSettings


def share_of_rate(settings: TrainerSettings, num_updates: int) -> float:
    """The next update's share of the full rate, after `num_updates` updates."""
    optimizer = settings.optimizer
    highest = max(optimizer.warmup_steps * settings.updates_a_step, 1)
    update = num_updates + 1
    if update <= highest or optimizer.course == "constant":
        return min(update / highest, 1.0)
    gone = min((update - highest) / (settings.num_steps * settings.updates_a_step + 1 - highest), 1.0)
    left = 1.0 - gone if optimizer.course == "linear" else (1.0 + math.cos(math.pi * gone)) / 2.0
    return optimizer.final_share + (1.0 - optimizer.final_share) * left
