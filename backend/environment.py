"""The environment of every control-plane process, read once, failing loudly.

infra/local/ and docker-compose.yml set exactly these variables.
"""

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from backend.borders.proxies import Network, read_networks

# Without them everything works; infra/local passes those on that somebody has set.
OPTIONAL = frozenset(
    f"LAMINAR_{name}"
    for name in (
        *("DEBUG", "SITE_DIR", "STORE_URL", "STORE_ENDPOINT", "KEEP_POINTS_DAYS", "AUDIT_DIR", "AUDIT_KEY_FILE"),
        *("TRUSTED_PROXIES", "KEEP_LOGS_DAYS", "KEEP_TRAJECTORIES_DAYS"),
        *("METRICS_TOKEN", "METRICS_DIR", "RATE_SCALE", "WEBHOOKS_TO_LOOPBACK", "EMAIL_URL", "EMAIL_FROM"),
        *("SESSION_IDLE_HOURS", "SESSION_DAYS", "BREACHED_PASSWORDS_FILE"),
        *("OPEN_SIGN_UP", "OIDC_ISSUER", "OIDC_CLIENT_ID", "OIDC_SECRET_FILE", "OIDC_NAME", "OIDC_DOMAINS"),
    )
)

# What had another name once. Silently ignored, a period of 0 would mean the default, and things would be removed.
RENAMED: Final = {"LAMINAR_KEEP_ROLLOUTS_DAYS": "LAMINAR_KEEP_TRAJECTORIES_DAYS"}


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
    """The folder that Ray nodes share with the control plane and may write: nothing in it is believed."""
    site_dir: Path
    """A folder that no Ray node sees: static files, and the audit log's anchors and key."""
    allowed_hosts: tuple[str, ...]
    debug: bool
    store_url: str
    """s3://bucket/prefix for large things; empty: `store_dir`."""
    store_endpoint: str
    """Of an S3-compatible server that is not Amazon's."""
    keep_points_days: int
    """After a job's end; then long series are reduced to their rollups."""
    keep_logs_days: int
    """After a job's end; then its log lines are removed. 0: forever."""
    keep_trajectories_days: int
    """The same of its trajectories and their files."""
    audit_dir: Path
    """The folder of the audit log's anchors; best on another disk than the database's."""
    audit_key_file: Path
    """The Ed25519 key that signs them; made there if there is none."""
    trusted_proxies: tuple[Network, ...]
    """Addresses and networks whose X-Forwarded-For is believed."""
    metrics_token: str
    """The bearer token with which one may read /metrics; empty: only this machine may."""
    metrics_dir: str
    """Several web processes on one port keep their counts in this folder; empty: there is one."""
    rate_scale: float
    """Multiplies every rate limit of the API."""
    webhooks_to_loopback: bool
    """For development: webhooks may go to http://127.0.0.1."""
    email_url: str
    """smtp://user:password@host:587 (STARTTLS) or smtps://…:465; empty: no mail is sent."""
    email_from: str
    session_idle_hours: int
    """A session that nobody used for so long ends."""
    session_days: int
    """One that began so long ago ends in any case."""
    breached_passwords_file: str
    """Pwned Passwords, ordered by SHA-1; empty: the commonest passwords only are refused."""
    open_sign_up: bool
    """Whoever proves an address may make an account, with a team of their own. Needs mail."""
    oidc_issuer: str
    """Of the OpenID provider that people may sign in with; empty: passwords only."""
    oidc_client_id: str
    oidc_secret_file: str
    oidc_name: str
    """On the button."""
    oidc_domains: tuple[str, ...]
    """Addresses of these domains only; empty: of all."""


def read_environment(source: dict[str, str] | None = None) -> Environment:
    values = dict(os.environ) if source is None else source
    names = [f"LAMINAR_{field.name.upper()}" for field in fields(Environment)]
    missing = [name for name in names if name not in OPTIONAL and not values.get(name)]
    if missing:
        raise MissingSetting(
            f"the environment lacks {', '.join(missing)}; `make up` and docker-compose.yml set them, "
            "and the README says what each one is"
        )
    for former, name in RENAMED.items():
        if values.get(former):
            raise MissingSetting(f"{former} is called {name} now; set that instead")
    store_dir = Path(values["LAMINAR_STORE_DIR"])
    site_dir = Path(values.get("LAMINAR_SITE_DIR") or store_dir.parent / "site")
    if store_dir.resolve() in (site_dir.resolve(), *site_dir.resolve().parents):
        raise MissingSetting(
            f"LAMINAR_SITE_DIR: a folder outside of LAMINAR_STORE_DIR ({store_dir}), which Ray nodes may write, "
            f"got {site_dir}"
        )
    return Environment(
        database_url=values["LAMINAR_DATABASE_URL"],
        broker_url=values["LAMINAR_BROKER_URL"],
        secret_key=values["LAMINAR_SECRET_KEY"],
        public_url=values["LAMINAR_PUBLIC_URL"].rstrip("/"),
        control_url=values["LAMINAR_CONTROL_URL"].rstrip("/"),
        ray_url=values["LAMINAR_RAY_URL"].rstrip("/"),
        ray_token_file=Path(values["LAMINAR_RAY_TOKEN_FILE"]),
        store_dir=store_dir,
        site_dir=site_dir,
        allowed_hosts=tuple(host.strip() for host in values["LAMINAR_ALLOWED_HOSTS"].split(",") if host.strip()),
        debug=values.get("LAMINAR_DEBUG", "0") == "1",
        store_url=values.get("LAMINAR_STORE_URL", ""),
        store_endpoint=values.get("LAMINAR_STORE_ENDPOINT", ""),
        keep_points_days=int(values.get("LAMINAR_KEEP_POINTS_DAYS") or 90),
        keep_logs_days=int(values.get("LAMINAR_KEEP_LOGS_DAYS") or 90),
        keep_trajectories_days=int(values.get("LAMINAR_KEEP_TRAJECTORIES_DAYS") or 90),
        audit_dir=Path(values.get("LAMINAR_AUDIT_DIR") or site_dir / "audit"),
        audit_key_file=Path(values.get("LAMINAR_AUDIT_KEY_FILE") or site_dir / "audit" / "signing_key.pem"),
        trusted_proxies=_networks(values.get("LAMINAR_TRUSTED_PROXIES", "")),
        metrics_token=values.get("LAMINAR_METRICS_TOKEN", ""),
        metrics_dir=values.get("LAMINAR_METRICS_DIR", ""),
        rate_scale=float(values.get("LAMINAR_RATE_SCALE") or 1),
        webhooks_to_loopback=values.get("LAMINAR_WEBHOOKS_TO_LOOPBACK", "0") == "1",
        email_url=values.get("LAMINAR_EMAIL_URL", ""),
        email_from=values.get("LAMINAR_EMAIL_FROM", ""),
        session_idle_hours=_at_least_one(values, "LAMINAR_SESSION_IDLE_HOURS", 12),  # over night, not over a day's work
        session_days=_at_least_one(values, "LAMINAR_SESSION_DAYS", 14),
        breached_passwords_file=values.get("LAMINAR_BREACHED_PASSWORDS_FILE", ""),
        open_sign_up=values.get("LAMINAR_OPEN_SIGN_UP", "0") == "1",
        oidc_issuer=values.get("LAMINAR_OIDC_ISSUER", "").rstrip("/"),
        oidc_client_id=values.get("LAMINAR_OIDC_CLIENT_ID", ""),
        oidc_secret_file=values.get("LAMINAR_OIDC_SECRET_FILE", ""),
        oidc_name=values.get("LAMINAR_OIDC_NAME") or "single sign-on",
        oidc_domains=tuple(values.get("LAMINAR_OIDC_DOMAINS", "").lower().replace(",", " ").split()),
    )


def _at_least_one(values: dict[str, str], name: str, default: int) -> int:
    text = values.get(name) or str(default)
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= 10_000):
        raise MissingSetting(f"{name} must be a whole number from 1 to 10000, got {text!r}")
    return int(text)


def _networks(text: str) -> tuple[Network, ...]:
    try:
        return read_networks(text)
    except ValueError as error:
        raise MissingSetting(
            f"LAMINAR_TRUSTED_PROXIES: {error}; write addresses or networks such as 10.0.0.7 or 10.0.0.0/8, by commas"
        ) from error


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


def database_options(url: str) -> dict[str, str]:
    """What stands behind the `?`, for libpq to judge. Left out in silence, verify-full would mean no check at all."""
    return dict(parse_qsl(urlsplit(url).query, keep_blank_values=True))


def mail_settings(url: str, sender: str) -> dict[str, object]:
    """Django's settings for sending mail. Without a server nothing is sent: a link in a log would be a leak."""
    if not url:
        return {"EMAIL_BACKEND": "django.core.mail.backends.dummy.EmailBackend"}
    parts = urlsplit(url)
    if parts.scheme not in {"smtp", "smtps"} or not parts.hostname or not sender:
        raise MissingSetting(
            "LAMINAR_EMAIL_URL must look like smtp://user:password@host:587, with LAMINAR_EMAIL_FROM beside it"
        )
    return {
        "EMAIL_BACKEND": "django.core.mail.backends.smtp.EmailBackend",
        "EMAIL_HOST": parts.hostname,
        "EMAIL_PORT": parts.port or (465 if parts.scheme == "smtps" else 587),
        "EMAIL_HOST_USER": unquote(parts.username or ""),
        "EMAIL_HOST_PASSWORD": unquote(parts.password or ""),
        "EMAIL_USE_SSL": parts.scheme == "smtps",
        "EMAIL_USE_TLS": parts.scheme == "smtp" and bool(parts.username),
        "EMAIL_TIMEOUT": 10,
        "DEFAULT_FROM_EMAIL": sender,
    }


def oidc_app(environment: Environment) -> list[dict[str, object]]:
    """The one OpenID provider, as allauth wants it; none if it is not configured."""
    if not environment.oidc_issuer:
        return []
    if not environment.oidc_client_id or not environment.oidc_secret_file:
        raise MissingSetting("LAMINAR_OIDC_ISSUER needs LAMINAR_OIDC_CLIENT_ID and LAMINAR_OIDC_SECRET_FILE beside it")
    return [
        {
            "provider_id": "sso",
            "name": environment.oidc_name,
            "client_id": environment.oidc_client_id,
            "secret": Path(environment.oidc_secret_file).read_text().strip(),
            "settings": {"server_url": environment.oidc_issuer, "oauth_pkce_enabled": True},
        }
    ]
