"""The series that rules read."""

from typing import Final

PART: Final = "reward/part/"
"""Prefix of the reward parts that an environment reports. Read from the first step on, too."""
OF_THE_WHOLE: Final = (
    "reward/mean",
    "reward/min",
    "reward/max",
    "length/mean",
    "length/cut_fraction",
    "train/entropy",
)
"""Read from the first step on."""
OF_THE_LAST_STEPS: Final = (
    *OF_THE_WHOLE,
    "reward/untrusted",
    "reward/groups_without_signal",
    "train/skipped",
    "train/grad_norm",
    "train/logprob_gap_p90",
    "train/logprob_gap_bound",
    "samples/trained",
    "samples/filtered",
    "samples/dropped_stale",
    "samples/failed",
    "staleness/max",
    "environment/seconds_max",
    "length/segments",
    "throughput/tokens_per_s",
    "trainer/step_s",
    "trainer/wait_fraction",
    "rollout/time_idle",
    "rollout/time_environment",
)
