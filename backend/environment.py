"""The environment of every control-plane process, read once, failing loudly.

infra/local/ and docker-compose.yml set exactly these variables.
"""

import os
from dataclasses import dataclass, fields
from pathlib import Path
from urllib.parse import unquote, urlsplit


class MissingSetting(RuntimeError):
    """A variable of the environment is missing or malformed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    database_url: str
    broker_url: str
    secret_key: str
    public_url: str
    control_url: str
    ray_url: str
    ray_token_file: Path
    store_dir: Path
    allowed_hosts: tuple[str, ...]
    debug: bool


def read_environment(source: dict[str, str] | None = None) -> Environment:
    values = dict(os.environ) if source is None else source
    missing = [f"LAMINAR_{field.name.upper()}" for field in fields(Environment) if field.name not in {"debug"}]
    missing = [name for name in missing if not values.get(name)]
    if missing:
        raise MissingSetting(
            f"the environment lacks {', '.join(missing)}; `make up` and docker-compose.yml set them, "
            "and the README says what each one is"
        )
    return Environment(
        database_url=values["LAMINAR_DATABASE_URL"],
        broker_url=values["LAMINAR_BROKER_URL"],
        secret_key=values["LAMINAR_SECRET_KEY"],
        public_url=values["LAMINAR_PUBLIC_URL"].rstrip("/"),
        control_url=values["LAMINAR_CONTROL_URL"].rstrip("/"),
        ray_url=values["LAMINAR_RAY_URL"].rstrip("/"),
        ray_token_file=Path(values["LAMINAR_RAY_TOKEN_FILE"]),
        store_dir=Path(values["LAMINAR_STORE_DIR"]),
        allowed_hosts=tuple(host.strip() for host in values["LAMINAR_ALLOWED_HOSTS"].split(",") if host.strip()),
        debug=values.get("LAMINAR_DEBUG", "0") == "1",
    )


def database_settings(url: str) -> dict[str, object]:
    parts = urlsplit(url)
    if parts.scheme not in {"postgres", "postgresql"} or not parts.hostname or not parts.path.strip("/"):
        raise MissingSetting("LAMINAR_DATABASE_URL must look like postgresql://user:password@host:port/name")
    return {
        "ENGINE": "django.db.backends.postgresql",
        "HOST": parts.hostname,
        "PORT": str(parts.port or 5432),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "NAME": parts.path.strip("/"),
    }
