"""The pool of partial responses: tokens of unfinished samples, to resume from when their replica is lost.

Invariants:
- the pool is a cache: losing all of it costs tokens, never a trajectory;
- where a trajectory has one version, a sample resumes only on the weights that began it. When no replica holds them any
  more, its tokens are dropped and it begins again;
- where it may have several, a sample resumes with all its tokens, on its sole writer if held, else on any weights.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from engine.pipeline.data.accounts import Account, Owner
from engine.pipeline.data.groups import GroupBook, OpenGroup
from engine.pipeline.data.known_replicas import KnownReplicas
from engine.pipeline.messages.to_data import ProgressStreamed
from engine.pipeline.packed import Bytes
from engine.pipeline.records import NO_ROUTES, GroupKey, Growth, SampleKey, SampleProgress, Trajectory
from engine.policy.lineage import WeightsId


class PartialPool:
    def __init__(self, *, keeps_version: bool, mixes_versions: bool = False) -> None:
        self.keeps_version, self._mixes_versions = keeps_version, mixes_versions
        self.num_tokens_saved = 0
        self.num_tokens_lost = 0

    # ── reports ───────────────────────────────────────────────────────────────────────────────────────────────────

    def receive(self, message: ProgressStreamed, training: GroupBook) -> tuple[SampleKey, ...]:
        """Returns the samples that must be reported whole: their increments continue no known account."""
        reporter = (message.replica, message.incarnation)
        lacking = [each.key for each in message.progress if not _add(each, _owned(training, each.key.group, reporter))]
        for growth in message.growth:
            lacking += _add_growth(growth, training, reporter)
        return tuple(lacking)

    def take(self, whole: Sequence[SampleProgress], groups: Iterable[OpenGroup]) -> None:
        """Takes whole progress that the owner of these groups sent when it stopped them."""
        owned = {group.key: group for group in groups}
        for progress in whole:
            _add(progress, owned.get(progress.key.group))

    def join_routes(self, trajectory: Trajectory, training: GroupBook, reporter: Owner) -> Trajectory:
        """Joins the routes that the replica had reported with those that came with the trajectory. All are unknown if
        they are not of the same run of the sample, or data was restarted in between."""
        content = trajectory.content
        if content is None or not content.routes_since:
            return trajectory
        group = training.get(trajectory.key.group)
        account = None if group is None else group.progress.get(trajectory.key.sample)
        routes = NO_ROUTES
        if account is not None and account.has_routes(
            content.routes_since, reporter=reporter, sample_run=content.sample_run
        ):
            routes = Bytes(b"".join((memoryview(account.packed_routes)[: content.routes_since], content.routes.data)))
        return replace(trajectory, content=replace(content, routes=routes, routes_since=0, sample_run=0))

    # ── resuming ──────────────────────────────────────────────────────────────────────────────────────────────────

    def settle(self, training: GroupBook, replicas: KnownReplicas) -> None:
        """Sets for each group without an owner the weights on which it may resume."""
        if not training.num_unowned:
            return
        for group in training.unowned():
            if not group.progress:
                group.exact = None
            elif self.keeps_version:
                weights = _sole_writer(group)
                is_held = weights is not None and any(
                    weights in replica.residents and not replica.is_leaving for replica in replicas
                )
                if is_held or self._mixes_versions:
                    group.exact = weights if is_held else None
                else:
                    self.forget(group)

    def forget(self, group: OpenGroup) -> None:
        self.num_tokens_lost += sum(account.num_tokens for account in group.progress.values())
        group.progress = {}
        if group.key.evaluation is None:
            group.exact = None

    def keep_what_fits(self, group: OpenGroup, weights: WeightsId) -> None:
        """Drops tokens by other weights, which `weights` cannot continue."""
        if self._mixes_versions or not self.keeps_version:
            return
        for sample, account in list(group.progress.items()):
            if any(writer != weights for writer in account.writers):
                self.num_tokens_lost += account.num_tokens
                del group.progress[sample]

    def count_saved(self, group: OpenGroup) -> None:
        self.num_tokens_saved += sum(account.num_tokens for account in group.progress.values())


def _add(progress: SampleProgress, group: OpenGroup | None) -> bool:
    """False if the progress continues another account, or is older than the known one."""
    if group is None or group.owner is None or progress.key.sample not in group.missing:
        return False
    account = group.progress.get(progress.key.sample)
    if progress.since == 0:
        if account is not None and account.is_newer_than(progress, reporter=group.owner):
            return account.reporter == group.owner and account.sample_run == progress.sample_run
        group.progress[progress.key.sample] = Account(progress, reporter=group.owner)
        return True
    if account is None or not account.is_continued(
        reporter=group.owner,
        sample_run=progress.sample_run,
        since=progress.since,
        upto=progress.num_tokens,
        routes_since=progress.routes_since,
        mark=progress.mark,
        brings_state=progress.state is not None,
    ):
        return False
    account.take(progress)
    return True


def _add_growth(growth: Growth, training: GroupBook, reporter: Owner) -> Iterator[SampleKey]:
    width = len(growth.packed_tokens) // max(1, sum(growth.num_new))
    packed_tokens, packed_routes = memoryview(growth.packed_tokens), memoryview(growth.packed_routes)
    at = at_route = 0
    group: OpenGroup | None = None
    of_samples = (growth.ordinals, growth.samples, growth.sample_runs, growth.marks)
    of_news = (growth.since, growth.num_new, growth.routes_since, growth.num_new_route_bytes)
    columns = zip(*of_samples, *of_news, strict=True)
    for ordinal, sample, sample_run, mark, since, num_new, routes_since, num_bytes in columns:
        if group is None or group.key.ordinal != ordinal:
            group = _owned(training, GroupKey(ordinal=ordinal), reporter)
        account = None if group is None else group.progress.get(sample)
        if account is not None and account.is_continued(
            reporter=reporter,
            sample_run=sample_run,
            since=since,
            upto=since + num_new,
            routes_since=routes_since,
            mark=mark,
        ):
            account.add(growth.weights, num_new, packed_tokens[at : at + num_new * width], since=since)
            account.add_routes(num_bytes, packed_routes[at_route : at_route + num_bytes], since=routes_since)
        else:
            yield SampleKey(group=GroupKey(ordinal=ordinal), sample=sample)
        at += num_new * width
        at_route += num_bytes


def _owned(training: GroupBook, key: GroupKey, owner: Owner) -> OpenGroup | None:
    group = training.get(key)
    return group if group is not None and group.owner == owner else None


def _sole_writer(group: OpenGroup) -> WeightsId | None:
    writers = {writer for account in group.progress.values() for writer in account.writers}
    return writers.pop() if len(writers) == 1 else None
