"""The services of a home, in the order of their start, and the way to stop each.

postgres ─┐
valkey ───┼─▶ migrate, ensure_demo ─▶ web, worker, beat
ray ──────┘   (needs postgres only)
"""

import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import psycopg

from backend.environment import OPTIONAL
from backend.pulses import AGES, BEAT, CANARY, LATE_AFTER_S
from infra.local.home import HOME_MARKER, PROJECT, SERVICE_MARKER, Home, shell_variables
from infra.local.services.http_health import responds
from infra.local.services.postgres import Postgres
from infra.local.services.ray_head import RayHead
from infra.local.services.valkey import Valkey

Environment = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    name: str
    command: Callable[[], list[str]]
    environment: Callable[[], Environment]
    prepare: Callable[[], None] = lambda: None
    is_healthy: Callable[[], bool]
    heard_through: tuple[str, ...] = ()
    """The services without which its sign of life does not come, so that it is not to blame."""
    identity: Callable[[], Mapping[str, Any]] = dict
    needs_database: bool = False
    starts_alone: bool = False
    """Not while the same service of another site on this machine starts."""
    ports: tuple[str, ...] = ()
    """The names of the ports on which it listens."""
    stop_signal: signal.Signals = signal.SIGTERM
    stop_grace_s: float = 8.0
    starts_within_s: float = 300.0
    """A distant net for a start that hangs: most that fail end by themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The site of one home, with its ports settled."""

    home: Home
    ports: Mapping[str, int]
    postgres: Postgres = field(init=False)
    valkey: Valkey = field(init=False)
    ray: RayHead = field(init=False)

    def __post_init__(self) -> None:
        ports = self.ports
        object.__setattr__(self, "postgres", Postgres(home=self.home, port=ports["postgres"]))
        object.__setattr__(self, "valkey", Valkey(home=self.home, port=ports["valkey"]))
        ray = RayHead(
            home=self.home,
            dashboard_port=ports["ray_dashboard"],
            gcs_port=ports["ray_gcs"],
            client_port=ports["ray_client"],
            agent_port=ports["ray_agent"],
        )
        object.__setattr__(self, "ray", ray)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.ports['web']}"

    def control_environment(self) -> dict[str, str]:
        """The variables that backend/environment.py reads."""
        return {
            **shell_variables(),
            "PYTHONPATH": str(PROJECT),
            "DJANGO_SETTINGS_MODULE": "backend.settings",
            "LAMINAR_DATABASE_URL": self.postgres.url(),
            "LAMINAR_BROKER_URL": self.valkey.url,
            "LAMINAR_SECRET_KEY": self.home.secret("django"),
            "LAMINAR_PUBLIC_URL": self.url,
            "LAMINAR_CONTROL_URL": self.url,
            "LAMINAR_RAY_URL": self.ray.url,
            "LAMINAR_RAY_TOKEN_FILE": str(self.ray.token_file),
            "LAMINAR_STORE_DIR": str(self.home.store),
            "LAMINAR_ALLOWED_HOSTS": "127.0.0.1,localhost",
            "LAMINAR_DEBUG": "0",
            **{name: os.environ[name] for name in sorted(OPTIONAL & os.environ.keys())},
            "LAMINAR_SITE_DIR": str(self.home.site),
            "LAMINAR_DATABASE_DIRECT_URL": "",  # the shell's is of another database than this one
        }

    def marked(self, service: Service) -> dict[str, str]:
        return {**service.environment(), HOME_MARKER: str(self.home.folder), SERVICE_MARKER: service.name}

    def services(self) -> list[Service]:
        """In the order in which they start; they stop the other way round."""
        return [
            Service(
                name="postgres",
                command=self.postgres.command,
                environment=self.postgres.environment,
                prepare=self.postgres.prepare,
                is_healthy=self.postgres.is_healthy,
                identity=self.postgres.identity,
                ports=("postgres",),
                stop_signal=signal.SIGINT,  # "fast": ends sessions, writes everything, needs no recovery
                stop_grace_s=15,
            ),
            Service(
                name="valkey",
                command=self.valkey.command,
                environment=self.postgres.environment,
                prepare=self.valkey.prepare,
                is_healthy=self.valkey.is_healthy,
                ports=("valkey",),
            ),
            Service(
                name="ray",
                command=self.ray.command,
                environment=self.ray.environment,
                prepare=self.ray.prepare,
                is_healthy=self.ray.is_healthy,
                starts_alone=True,
                ports=("ray_dashboard", "ray_gcs", "ray_client", "ray_agent"),
            ),
            *self._control_plane(),
        ]

    def _control_plane(self) -> list[Service]:
        port = str(self.ports["web"])
        commands: dict[str, list[str]] = {
            "web": ["uvicorn", "backend.asgi:application", "--host", "127.0.0.1", "--port", port, "--no-access-log",
                    "--http", "backend.api.limits.connections:BoundedHttp", "--ws-max-size", "65536",
                    "--no-proxy-headers", "--log-level", "warning", "--timeout-graceful-shutdown", "5"],
            "worker": ["celery", "--quiet", "-A", "backend.celery", "worker", "--concurrency", "2",
                       "--loglevel", "INFO", "--without-gossip", "--without-mingle"],
            "beat": ["celery", "--quiet", "-A", "backend.celery", "beat", "--loglevel", "WARNING", "--pidfile=",
                     "--schedule", str(self.home.run / "beat-schedule")],
        }  # fmt: skip
        healthy = {
            "web": self._web_is_healthy,
            "worker": lambda: self._beats(CANARY),
            "beat": lambda: self._beats(BEAT),
        }
        heard_through = {"worker": ("postgres", "valkey", "beat"), "beat": ("postgres", "valkey")}
        return [
            Service(
                name=name,
                command=lambda words=words: [sys.executable, "-m", *words],  # type: ignore[misc]
                environment=self._worker_environment if name == "worker" else self.control_environment,
                is_healthy=healthy[name],
                heard_through=heard_through.get(name, ()),
                needs_database=True,
                ports=("web",) if name == "web" else (),
            )
            for name, words in commands.items()
        ]

    def _worker_environment(self) -> dict[str, str]:
        # SIGTERM becomes Celery's soft shutdown: what runs may end, what waits goes back to the queue.
        return {**self.control_environment(), "REMAP_SIGTERM": "SIGQUIT"}

    def _beats(self, pulse: str) -> bool:
        """Its process may well be there, and stopped."""
        try:
            with psycopg.connect(self.postgres.url(), connect_timeout=3) as database:
                row = database.execute(AGES, [[pulse]]).fetchone()
        except psycopg.Error:
            return False
        return row is not None and row[1] < LATE_AFTER_S

    def _web_is_healthy(self) -> bool:
        return responds(f"{self.url}/healthz")
