"""The pool of partial responses: the text of unfinished samples, to go on from when their replica is gone.

Invariants:
- it is a help and no memory: losing all of it costs tokens, never a trajectory;
- where a trajectory has one version, a sample goes on only on a replica that holds the weights that began it. When
  no replica holds them any more, what it said is forgotten and it begins again.
"""

from collections.abc import Iterable, Sequence

from engine.pipeline.data.groups import GroupBook, OpenGroup
from engine.pipeline.data.known_replicas import KnownReplicas
from engine.pipeline.records import SampleProgress
from engine.policy.lineage import WeightsId


class PartialPool:
    def __init__(self, *, keeps_version: bool) -> None:
        self.keeps_version = keeps_version
        self.num_tokens_saved = 0
        self.num_tokens_lost = 0

    def take(self, streamed: Sequence[SampleProgress], groups: Iterable[OpenGroup]) -> None:
        """Takes the accounts of these groups' owner; one that is shorter than the one known is older."""
        by_group: dict[object, list[SampleProgress]] = {}
        for progress in streamed:
            by_group.setdefault(progress.key.group, []).append(progress)
        for group in groups:
            for progress in by_group.get(group.key, ()):
                sample = progress.key.sample
                known = group.progress.get(sample)
                if sample in group.missing and (known is None or known.num_tokens <= progress.num_tokens):
                    group.progress[sample] = progress

    def settle(self, training: GroupBook, replicas: KnownReplicas) -> None:
        """Groups without an owner: by whom can they go on?"""
        if not training.num_unowned:
            return
        for group in training.unowned():
            if not group.progress:
                group.exact = None
            elif self.keeps_version:
                weights = _sole_writer(group)
                if weights is None or not any(
                    weights in replica.residents and not replica.is_leaving for replica in replicas
                ):
                    self.forget(group)
                else:
                    group.exact = weights

    def forget(self, group: OpenGroup) -> None:
        self.num_tokens_lost += sum(progress.num_tokens for progress in group.progress.values())
        group.progress = {}
        if group.key.evaluation is None:
            group.exact = None

    def keep_what_fits(self, group: OpenGroup, weights: WeightsId) -> None:
        """Forgets the text of other weights, which is of no use to these."""
        if not self.keeps_version:
            return
        for sample, progress in list(group.progress.items()):
            if any(run.weights != weights for run in progress.runs):
                self.num_tokens_lost += progress.num_tokens
                del group.progress[sample]

    def goes_on(self, group: OpenGroup) -> None:
        self.num_tokens_saved += sum(progress.num_tokens for progress in group.progress.values())


def _sole_writer(group: OpenGroup) -> WeightsId | None:
    writers = {run.weights for progress in group.progress.values() for run in progress.runs}
    return writers.pop() if len(writers) == 1 else None
