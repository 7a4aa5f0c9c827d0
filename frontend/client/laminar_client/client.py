"""`Laminar` and `AsyncLaminar`: the same calls, blocking or awaited."""

from types import TracebackType
from typing import Self

import httpx

from .namespaces import Assets, Awaiting, Blocking, Checkpoints, Jobs, Models, TeamCalls, Webhooks
from .profiles import checked_key, checked_url, resolve_login
from .retrying import Patience
from .transport import AwaitingCarrier, BlockingCarrier, Connection

VERSION = "0.1.0"
TIMEOUT_S = 30.0


def _connection(url: str | None, api_key: str | None, profile: str | None, timeout_s: float) -> Connection:
    agent = f"laminar-client/{VERSION}"
    if url is not None and api_key is not None:
        return Connection(checked_url(url), checked_key(api_key), timeout_s=timeout_s, agent=agent)
    if url is not None or api_key is not None:
        raise ValueError("pass both url and api_key, or neither to use the environment or a profile")
    login = resolve_login(profile)
    return Connection(login.url, login.key, timeout_s=timeout_s, agent=agent)


class Laminar:
    """with Laminar() as client: job = client.jobs.submit(spec, project="proj_…")

    Without arguments, uses LAMINAR_URL and LAMINAR_API_KEY, or the profile stored by `laminar login`. Thread-safe.
    `transport` is httpx's, for tests and proxies."""

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        profile: str | None = None,
        timeout_s: float = TIMEOUT_S,
        patience: Patience | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        connection = _connection(url, api_key, profile, timeout_s)
        self.url = connection.url
        self._http = httpx.Client(transport=transport, follow_redirects=False)
        carrier = BlockingCarrier(connection, self._http, patience or Patience())
        self.jobs: Jobs[Blocking] = Jobs(carrier)
        self.checkpoints: Checkpoints[Blocking] = Checkpoints(carrier)
        self.models: Models[Blocking] = Models(carrier)
        self.assets: Assets[Blocking] = Assets(carrier)
        self.team: TeamCalls[Blocking] = TeamCalls(carrier)
        self.webhooks: Webhooks[Blocking] = Webhooks(carrier)

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncLaminar:
    """async with AsyncLaminar() as client: job = await client.jobs.submit(spec, project="proj_…")"""

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        profile: str | None = None,
        timeout_s: float = TIMEOUT_S,
        patience: Patience | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        connection = _connection(url, api_key, profile, timeout_s)
        self.url = connection.url
        self._http = httpx.AsyncClient(transport=transport, follow_redirects=False)
        carrier = AwaitingCarrier(connection, self._http, patience or Patience())
        self.jobs: Jobs[Awaiting] = Jobs(carrier)
        self.checkpoints: Checkpoints[Awaiting] = Checkpoints(carrier)
        self.models: Models[Awaiting] = Models(carrier)
        self.assets: Assets[Awaiting] = Assets(carrier)
        self.team: TeamCalls[Awaiting] = TeamCalls(carrier)
        self.webhooks: Webhooks[Awaiting] = Webhooks(carrier)

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
