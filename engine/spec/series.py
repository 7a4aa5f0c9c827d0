"""The series of a job, declared once: name, unit, meaning, label, and the module that measures them.

Charts and the verdict's evidence read this table. series.md (written by `python -m engine.spec.series_table`), `laminar
watch`, the rules of the verdict and the page tests' data are compared with it.

Invariants:
- one module measures a series, so that no merge of two measurements decides which of them counts;
- `*` at the end of a name stands for one or more letters, digits and underscores: a family, whose members a run
  decides. No series belongs to two rows.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

_MEMBER: Final = re.compile(r"[a-z0-9_]+")


@dataclass(frozen=True, slots=True)
class Series:
    name: str
    unit: str
    """Empty for rewards, losses, ratios, and counts whose label names what is counted. `share`: 0 to 1."""
    meaning: str
    label: str = ""
    """Where a single value of it is shown; empty: nowhere but under its name."""

    def matches(self, name: str) -> bool:
        family = self.name.removesuffix("*")
        if family == self.name:
            return name == self.name
        return name.startswith(family) and _MEMBER.fullmatch(name.removeprefix(family)) is not None


SERIES: Final[Mapping[str, Sequence[Series]]] = {
    "engine/pipeline/trainer/metrics.py": (
        Series("reward/mean", "", "mean reward of the step's trusted trajectories, truncated ones included", "reward"),
        Series("reward/std", "", "standard deviation of these rewards"),
        Series("reward/min", "", "lowest of these rewards"),
        Series("reward/max", "", "highest of these rewards"),
        Series("reward/groups_at_best", "share", "groups whose mean reward is the step's highest reward, above 0"),
        Series(
            "reward/groups_without_signal",
            "share",
            "groups whose trajectories all have the same reward",
            "groups without signal",
        ),
        Series(
            "reward/untrusted", "share", "trajectories whose reward the environment does not trust", "untrusted rewards"
        ),
        Series("reward/part/*", "", "mean of a part of the reward that the environment names, over trusted rewards"),
        Series("length/mean", "tokens", "mean length of a response", "length"),
        Series("length/p50", "tokens", "median length"),
        Series("length/p99", "tokens", "99th percentile of the lengths"),
        Series("length/max", "tokens", "greatest length"),
        Series("length/cut_fraction", "share", "responses truncated at the length limit", "truncated responses"),
        Series("length/segments", "", "mean number of segments of a trajectory", "segments of a trajectory"),
        Series("environment/seconds_mean", "s", "mean time of a trajectory in its environment, over all its turns"),
        Series(
            "environment/seconds_max",
            "s",
            "greatest time of a trajectory in its environment",
            "longest time in the environment",
        ),
        Series("environment/queue_s_mean", "s", "mean part of that time that was spent queued"),
        Series("environment/queue_s_max", "s", "greatest part of that time that was spent queued"),
        Series("environment/queue_depth", "calls", "most unanswered calls at a worker when a call arrived"),
        Series(
            "staleness/mean", "versions", "mean staleness of the trajectories, each by its oldest token", "staleness"
        ),
        Series("staleness/max", "versions", "greatest staleness of a trajectory", "greatest staleness"),
        Series(
            "throughput/tokens_per_s", "tokens/s", "response tokens of the step per second of the step", "throughput"
        ),
        Series("throughput/trajectories_per_s", "1/s", "trajectories of the step per second of the step"),
        Series(
            "trainer/step_s", "s", "time from the end of the previous step to the end of this one", "time of a step"
        ),
        Series(
            "trainer/wait_fraction",
            "share",
            "part of that time in which the trainer waited for its batch",
            "trainer waits",
        ),
        Series("buffer/groups", "", "complete groups that were ready when the batch left"),
        Series("buffer/groups_in_progress", "", "groups in progress when the batch left"),
        Series("moves/samples", "", "samples that a repack moved to another replica, since the start"),
        Series("moves/tokens_saved", "tokens", "tokens that another replica resumed with, since the start"),
        Series("moves/tokens_lost", "tokens", "tokens that had to be generated again, since the start"),
    ),
    "engine/pipeline/trainer/brain.py": (
        Series(
            "weights/broadcast_s", "s", "time from a version's first offer until the relays held it, of the last one"
        ),
    ),
    "engine/live/trainer/body.py": (
        Series(
            "trainer/handover_s", "s", "time that the trainer stood still to copy the version that it last published"
        ),
    ),
    "engine/training/step/metrics.py": (
        Series("train/loss", "", "the policy's loss, mean over the step's updates", "loss"),
        Series("train/entropy", "nats", "mean entropy of the policy over tokens", "entropy"),
        Series("train/clip_fraction", "share", "tokens whose ratio was clipped"),
        Series("train/clip_fraction_low", "share", "tokens whose ratio was clipped at the lower bound"),
        Series("train/clip_fraction_high", "share", "tokens whose ratio was clipped at the upper bound"),
        Series("train/ratio_mean", "", "mean over tokens of the policy's probability by the rollout's"),
        Series("train/ratio_max", "", "greatest of these ratios"),
        Series(
            "train/behaviour_kl", "nats", "estimate of the KL divergence of the rollouts' policy from the trained one"
        ),
        Series(
            "train/effective_sample_fraction", "share", "tokens that would carry as much information at equal ratios"
        ),
        Series("train/correction_weight", "", "mean weight of a token by the correction for its age"),
        Series("train/corrected_away", "share", "tokens of weight 0"),
        Series("train/advantage_mean", "", "mean advantage over tokens"),
        Series("train/advantage_std", "", "standard deviation of the advantages over tokens"),
        Series("train/padding_fraction", "share", "attention's places that are padding"),
        Series(
            "train/shared_fraction", "share", "input tokens not read again, as another sample of the prompt has them"
        ),
        Series("train/tokens", "tokens", "tokens of the trained prompts and responses"),
        Series("train/trained_tokens", "tokens", "tokens of these that the policy wrote"),
        Series("train/unrouted_fraction", "share", "tokens' experts that the rollouts did not report, in a mixture"),
        Series("train/kl", "nats", "estimate of the KL divergence between policy and reference"),
        Series("train/teacher_kl", "nats", "mean over tokens of the policy's log-prob minus the teacher's"),
        Series("train/overlong_penalty", "", "mean penalty of a trajectory for its length"),
        Series("train/value_loss", "", "the critic's loss, mean over the step's updates"),
        Series("train/value_mean", "", "mean over tokens of the critic's values"),
        Series("train/explained_variance", "", "1: the critic predicts every return; 0: no better than a constant"),
        Series(
            "train/grad_norm", "", "norm of the gradient before clipping, mean over the step's updates", "gradient norm"
        ),
        Series("train/critic_grad_norm", "", "the same of the critic's gradient"),
        Series("train/learning_rate", "", "the policy's learning rate at the last update"),
        Series("train/updates", "", "updates of the step that were applied"),
        Series(
            "train/skipped", "", "updates skipped, because their losses or gradients were not finite", "skipped updates"
        ),
    ),
    "engine/training/step/gap.py": (
        Series(
            "train/logprob_gap_bound",
            "nats",
            "90th percentile of the gap that rounding explains",
            "gap explained by rounding",
        ),
        Series(
            "train/logprob_gap",
            "nats",
            "mean gap: distance of the trainer's log-prob from the rollout's, by the same weights",
        ),
        Series("train/logprob_gap_max", "nats", "greatest gap"),
        Series("train/logprob_gap_p50", "nats", "median gap"),
        Series("train/logprob_gap_p90", "nats", "90th percentile of the gap", "gap of rollouts and trainer"),
        Series("train/logprob_gap_p99", "nats", "99th percentile of the gap"),
        Series(
            "train/logprob_gap_k1",
            "nats",
            "estimate k1 of the KL divergence of the rollouts' policy from the trainer's",
        ),
        Series("train/logprob_gap_k3", "nats", "estimate k3 of the same"),
        Series(
            "train/logprob_gap_p99_quarter_*", "nats", "99th percentile of the gap in a quarter of the response, 1 to 4"
        ),
        Series("train/logprob_gap_p99_lag_*", "nats", "99th percentile for tokens 1, 2, and 3 or more versions old"),
        Series("train/logprob_gap_k3_lag_*", "nats", "estimate k3 for tokens 1, 2, and 3 or more versions old"),
    ),
    "engine/pipeline/failure_counts.py": (
        Series("failures/samples", "", "samples of the step that ended without a reward"),
        Series("failures/replacements", "", "samples started in the place of failed ones"),
        Series("failures/short_groups", "", "groups trained with fewer samples than the group size"),
        Series("failures/groups", "", "groups dropped, because too few of their samples had a reward"),
    ),
    "engine/live/facts/recorder.py": (
        Series("rollout/replicas", "", "replicas at work"),
        Series("rollout/kv_used", "share", "use of the replicas' key-value caches, mean over replicas"),
        Series("rollout/running", "", "sequences in progress on all replicas"),
        Series("rollout/version_lag", "versions", "versions that a replica is behind the trainer, mean over replicas"),
        Series("rollout/time_decode", "share", "replicas' time since the previous step spent decoding"),
        Series("rollout/time_prefill", "share", "replicas' time spent reading prompts"),
        Series("rollout/time_environment", "share", "replicas' time spent waiting for environments"),
        Series("rollout/time_weights", "share", "replicas' time spent installing weights"),
        Series("rollout/time_move", "share", "replicas' time spent taking over trajectories of others"),
        Series("rollout/time_idle", "share", "replicas' time without work", "replicas' idle time"),
        Series("weights/bytes", "bytes", "bytes of weights sent among relays since the previous step"),
        Series("weights/slowest_relay_s", "s", "greatest time from a version's announcement until a relay held it"),
        Series("weights/by_delta", "share", "of these versions, those sent as differences"),
        Series("samples/trained", "", "samples that ended in a trained batch since the previous step"),
        Series("samples/filtered", "", "samples filtered out, since their group had no signal"),
        Series("samples/dropped_stale", "", "samples dropped, because they were too stale", "samples dropped as stale"),
        Series("samples/failed", "", "samples that failed, or whose group was dropped for a failure", "samples failed"),
    ),
    "engine/live/facts/from_reports.py": (
        Series("train/nonfinite_metrics", "", "values of the step left out, because they were not finite"),
    ),
    "backend/telemetry/intake/effects.py": (
        Series(
            "evaluation/reward",
            "",
            "avg@k: mean over held-out prompts of their answers' mean reward",
            "held-out reward",
        ),
        Series("evaluation/reward_std", "", "standard deviation of the prompts' mean rewards"),
        Series("evaluation/reward_error", "", "standard error of evaluation/reward", "held-out error"),
        Series("evaluation/length", "tokens", "mean length of a held-out answer"),
        Series("evaluation/pass_rate", "share", "pass@k: held-out prompts with an answer that passes", "pass@k"),
        Series("evaluation/pass_error", "share", "standard error of evaluation/pass_rate"),
    ),
}
"""By the module that measures them."""
_LABELLED: Final = tuple(row for row in chain.from_iterable(SERIES.values()) if row.label)


def find_series(name: str) -> Series:
    """Raises `KeyError` if the series is not declared."""
    for row in chain.from_iterable(SERIES.values()):
        if row.matches(name):
            return row
    raise KeyError(f"{name} is not a series of engine/spec/series.py")


def label_of(name: str) -> str:
    """With its unit. The name of a series without a label, or of an engine of another release."""
    labels = [f"{row.label}, {row.unit}" if row.unit else row.label for row in _LABELLED if row.name == name]
    return labels[0] if labels else name
