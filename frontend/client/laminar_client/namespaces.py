"""The calls as methods, shared by both clients: `client.jobs.show(id)` returns a `Job`, or an awaitable of one.

A namespace is generic in its mode. `Call` and `Streaming` are descriptors that bind a function of `calls` to the
client's carrier; the overloads give type checkers the return type.
"""

import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Generic, ParamSpec, TypeVar, overload

from . import fetching, uploading
from .calls import assets, checkpoints, jobs, people, team, telemetry, watching, webhooks
from .exporting import curves
from .transport import Carrier
from .wire import Procedure, Stream

P = ParamSpec("P")
T = TypeVar("T")


class Blocking:
    """A mode: calls block and return their result."""


class Awaiting:
    """A mode: calls are awaited, streams are asynchronous iterators."""


Mode = TypeVar("Mode", Blocking, Awaiting)


class Namespace(Generic[Mode]):
    def __init__(self, carrier: Carrier) -> None:
        self._carrier = carrier

    @property
    def carrier(self) -> Carrier:
        return self._carrier


class Call(Generic[P, T]):
    def __init__(self, make: Callable[P, Procedure[T]]) -> None:
        self.make = make

    @overload
    def __get__(self, of: Namespace[Blocking], owner: Any = None) -> Callable[P, T]: ...
    @overload
    def __get__(self, of: Namespace[Awaiting], owner: Any = None) -> Callable[P, Awaitable[T]]: ...
    def __get__(self, of: Any, owner: Any = None) -> Any:
        if of is None:
            return self

        @functools.wraps(self.make)
        def call(*args: P.args, **kwargs: P.kwargs) -> Any:
            return of.carrier.run(self.make(*args, **kwargs))

        return call


class Streaming(Generic[P, T]):
    def __init__(self, make: Callable[P, Stream[T]]) -> None:
        self.make = make

    @overload
    def __get__(self, of: Namespace[Blocking], owner: Any = None) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, of: Namespace[Awaiting], owner: Any = None) -> Callable[P, AsyncIterator[T]]: ...
    def __get__(self, of: Any, owner: Any = None) -> Any:
        if of is None:
            return self

        @functools.wraps(self.make)
        def call(*args: P.args, **kwargs: P.kwargs) -> Any:
            return of.carrier.iterate(self.make(*args, **kwargs))

        return call


class Jobs(Namespace[Mode]):
    submit = Call(jobs.submit)
    preview = Call(jobs.preview)
    show = Call(jobs.show)
    each = Streaming(jobs.each)
    change = Call(jobs.change)
    cancel = Call(jobs.cancel)
    cancel_many = Call(jobs.cancel_many)
    pause = Call(jobs.pause)
    resume = Call(jobs.resume)
    kill = Call(jobs.kill)
    retry = Call(jobs.retry)
    explain = Call(jobs.explain)
    wait = Call(jobs.wait)
    watch = Streaming(watching.watch)
    events = Streaming(telemetry.events)
    attempts = Call(jobs.attempts)
    faults = Call(jobs.faults)
    timeline = Call(telemetry.timeline)
    metrics = Call(telemetry.metrics)
    export = Call(curves.export)
    logs = Streaming(telemetry.logs)
    trajectories = Streaming(telemetry.trajectories)
    checkpoints = Call(checkpoints.of_job)
    usage = Call(jobs.usage)


class Checkpoints(Namespace[Mode]):
    each = Streaming(checkpoints.each)
    show = Call(checkpoints.show)
    pin = Call(checkpoints.pin)
    remove = Call(checkpoints.remove)
    evaluate = Call(checkpoints.evaluate)
    link = Call(checkpoints.link)
    download = Call(fetching.download)
    promote = Call(checkpoints.promote)


class Models(Namespace[Mode]):
    each = Streaming(checkpoints.models)
    show = Call(checkpoints.model)
    remove = Call(checkpoints.remove_model)
    version = Call(checkpoints.version)
    change_note = Call(checkpoints.change_note)
    remove_version = Call(checkpoints.remove_version)


class Assets(Namespace[Mode]):
    upload = Call(uploading.upload)
    each = Streaming(assets.each)
    show = Call(assets.show)
    files = Streaming(assets.files)
    begin = Call(assets.begin)
    put_part = Call(assets.put_part)
    complete = Call(assets.complete)
    remove = Call(assets.remove)
    storage = Call(assets.storage)


class TeamCalls(Namespace[Mode]):
    me = Call(team.me)
    projects = Call(team.projects)
    make_project = Call(team.make_project)
    templates = Call(team.templates)
    template = Call(team.template)
    keys = Streaming(team.keys)
    make_key = Call(team.make_key)
    revoke_key = Call(team.revoke_key)
    pools = Call(team.pools)
    queue = Call(team.queue)
    quota = Call(team.quota)
    budget = Call(team.budget)
    usage = Call(team.usage)
    events = Streaming(telemetry.team_events)
    members = Call(people.members)
    change_member = Call(people.change_member)
    remove_member = Call(people.remove_member)
    invitations = Streaming(people.invitations)
    invite = Call(people.invite)
    revoke_invitation = Call(people.revoke_invitation)
    audit = Streaming(people.audit)


class Webhooks(Namespace[Mode]):
    each = Streaming(webhooks.each)
    show = Call(webhooks.show)
    make = Call(webhooks.make)
    change = Call(webhooks.change)
    remove = Call(webhooks.remove)
    rotate_secret = Call(webhooks.rotate_secret)
    send_test = Call(webhooks.send_test)
    deliveries = Streaming(webhooks.deliveries)
    delivery = Call(webhooks.delivery)
    redeliver = Call(webhooks.redeliver)
