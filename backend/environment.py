"""The environment of every control-plane process, read once, failing loudly.

infra/local/ and docker-compose.yml set exactly these variables.
"""

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

from backend.borders.proxies import Network, read_networks
from backend.missing import MissingSetting
from backend.outside.addresses import broker_address, database_address
from backend.outside.trust import trusted
from engine.spec.log_text import form_of
from engine.spec.spans import traces_address

# Without them everything works; infra/local passes those on that somebody has set.
OPTIONAL = frozenset(
    f"LAMINAR_{name}"
    for name in (
        *(
            "SECRET_KEYS_OF_BEFORE",
            "DEBUG",
            "SITE_DIR",
            "STORE_URL",
            "STORE_ENDPOINT",
            "KEEP_POINTS_DAYS",
            "AUDIT_DIR",
            "AUDIT_KEY_FILE",
        ),
        *("TRUSTED_PROXIES", "KEEP_LOGS_DAYS", "KEEP_TRAJECTORIES_DAYS"),
        *(
            "METRICS_TOKEN",
            "METRICS_TOKEN_FILE",
            "METRICS_DIR",
            "RATE_SCALE",
            "WEBHOOKS_TO_LOOPBACK",
            "EMAIL_URL",
            "EMAIL_FROM",
        ),
        *("SESSION_IDLE_HOURS", "SESSION_DAYS", "BREACHED_PASSWORDS_FILE"),
        *("DATABASE_DIRECT_URL", "CA_FILE", "STORE_REGION", "STORE_ADDRESSING"),
        *("RAY_TOKENS_DIR", "LOG_FORMAT", "OTLP_URL"),
        *("OPEN_SIGN_UP", "OIDC_ISSUER", "OIDC_CLIENT_ID", "OIDC_SECRET_FILE", "OIDC_NAME", "OIDC_DOMAINS"),
    )
)

# What had another name once. Silently ignored, a period of 0 would mean the default, and things would be removed.
RENAMED: Final = {"LAMINAR_KEEP_ROLLOUTS_DAYS": "LAMINAR_KEEP_TRAJECTORIES_DAYS"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Not shown where it is printed: half of it is passwords, and Django's page for developers prints it."""

    database_url: str
    """Postgres, or a pooler before it."""
    database_direct_url: str
    """Postgres itself, past a pooler in transaction mode; empty: `database_url` is no pooler."""
    broker_url: str
    secret_key: str
    secret_keys_of_before: tuple[str, ...]
    """What they sealed or signed is still read, until they are taken away."""
    public_url: str
    control_url: str
    ray_url: str
    ray_token_file: Path
    ray_tokens_dir: str
    """A folder of tokens of further Rays, a file each; empty: pools with an address of their own send none."""
    store_dir: Path
    """The folder that Ray nodes share with the control plane and may write: nothing in it is believed."""
    site_dir: Path
    """A folder that no Ray node sees: static files, and the audit log's anchors and key."""
    allowed_hosts: tuple[str, ...]
    debug: bool
    log_format: str
    """text, or json: an object a line; empty: text."""
    otlp_url: str
    """Where a collector takes spans (OTLP over HTTP); empty: none are made."""
    store_url: str
    """s3://bucket/prefix for large things; empty: `store_dir`."""
    store_endpoint: str
    """Of an S3-compatible server that is not Amazon's."""
    store_region: str
    """Empty: AWS_DEFAULT_REGION."""
    store_addressing: str
    """path (https://host/bucket/key) or virtual (https://bucket.host/key); empty: path."""
    ca_file: str
    """Certificate authorities of one's own (PEM), beside the public ones; empty: none."""
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
    metrics_token_file: str
    """Or the file that holds it."""
    metrics_dir: str
    """Several web processes on one port keep their counts in this folder; empty: there is one."""
    rate_scale: float
    """Multiplies every rate limit of the API."""
    webhooks_to_loopback: bool
    """For development: webhooks may go to http://127.0.0.1."""
    email_url: str
    """smtp://user:password@host:587 (STARTTLS), smtps://…:465 and the like; empty: no mail is sent."""
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

    def __repr__(self) -> str:
        return f"<the settings of {self.public_url}>"


def read_environment(source: dict[str, str] | None = None) -> Environment:
    values = dict(os.environ) if source is None else source
    names = [f"LAMINAR_{field.name.upper()}" for field in fields(Environment)]
    missing = [name for name in names if name not in OPTIONAL and not values.get(name)]
    if missing:
        raise MissingSetting(
            f"the environment lacks {', '.join(missing)}; `make up` and docker-compose.yml set them, "
            "and infra/OPERATING.md says what each one is"
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
    ca_file = _authorities(values.get("LAMINAR_CA_FILE", ""))
    return Environment(
        database_url=database_address(values["LAMINAR_DATABASE_URL"], ca_file),
        database_direct_url=database_address(values.get("LAMINAR_DATABASE_DIRECT_URL", ""), ca_file),
        broker_url=_broker(values["LAMINAR_BROKER_URL"], ca_file),
        secret_key=values["LAMINAR_SECRET_KEY"],
        secret_keys_of_before=tuple(values.get("LAMINAR_SECRET_KEYS_OF_BEFORE", "").split()),
        public_url=values["LAMINAR_PUBLIC_URL"].rstrip("/"),
        control_url=values["LAMINAR_CONTROL_URL"].rstrip("/"),
        ray_url=values["LAMINAR_RAY_URL"].rstrip("/"),
        ray_token_file=Path(values["LAMINAR_RAY_TOKEN_FILE"]),
        ray_tokens_dir=values.get("LAMINAR_RAY_TOKENS_DIR", ""),
        store_dir=store_dir,
        site_dir=site_dir,
        allowed_hosts=tuple(host.strip() for host in values["LAMINAR_ALLOWED_HOSTS"].split(",") if host.strip()),
        debug=values.get("LAMINAR_DEBUG", "0") == "1",
        log_format=_log_format(values.get("LAMINAR_LOG_FORMAT", "")),
        otlp_url=_collector(values.get("LAMINAR_OTLP_URL", "")),
        store_url=values.get("LAMINAR_STORE_URL", ""),
        store_endpoint=values.get("LAMINAR_STORE_ENDPOINT", ""),
        store_region=values.get("LAMINAR_STORE_REGION", ""),
        store_addressing=values.get("LAMINAR_STORE_ADDRESSING", ""),
        ca_file=ca_file,
        keep_points_days=int(values.get("LAMINAR_KEEP_POINTS_DAYS") or 90),
        keep_logs_days=int(values.get("LAMINAR_KEEP_LOGS_DAYS") or 90),
        keep_trajectories_days=int(values.get("LAMINAR_KEEP_TRAJECTORIES_DAYS") or 90),
        audit_dir=Path(values.get("LAMINAR_AUDIT_DIR") or site_dir / "audit"),
        audit_key_file=Path(values.get("LAMINAR_AUDIT_KEY_FILE") or site_dir / "audit" / "signing_key.pem"),
        trusted_proxies=_networks(values.get("LAMINAR_TRUSTED_PROXIES", "")),
        metrics_token=_metrics_token(values),
        metrics_token_file=values.get("LAMINAR_METRICS_TOKEN_FILE", ""),
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


def _metrics_token(values: dict[str, str]) -> str:
    token, file = values.get("LAMINAR_METRICS_TOKEN", ""), values.get("LAMINAR_METRICS_TOKEN_FILE", "")
    if not file:
        return token
    if token:
        raise MissingSetting("LAMINAR_METRICS_TOKEN and LAMINAR_METRICS_TOKEN_FILE: set one of them, got both")
    try:
        token = Path(file).read_text().strip()
    except OSError as error:
        raise MissingSetting(
            f"LAMINAR_METRICS_TOKEN_FILE: a file that this user may read, got {file} ({error.strerror})"
        ) from error
    if not token:
        raise MissingSetting(f"LAMINAR_METRICS_TOKEN_FILE: a file with a token in it, got an empty one, {file}")
    return token


def _log_format(name: str) -> str:
    try:
        form_of(name)
    except ValueError as error:
        raise MissingSetting(str(error)) from error
    return name


def _collector(url: str) -> str:
    try:
        return traces_address(url) if url else ""
    except ValueError as error:
        raise MissingSetting(str(error)) from error


def _at_least_one(values: dict[str, str], name: str, default: int) -> int:
    text = values.get(name) or str(default)
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= 10_000):
        raise MissingSetting(f"{name} must be a whole number from 1 to 10000, got {text!r}")
    return int(text)


def _authorities(file: str) -> str:
    try:
        trusted(file)
    except OSError as error:
        raise MissingSetting(
            f"LAMINAR_CA_FILE: a file of certificates (PEM), got {file!r}: {error.strerror or error}"
        ) from error
    return file


def _broker(url: str, ca_file: str) -> str:
    try:
        return broker_address(url, ca_file)
    except ValueError as error:
        raise MissingSetting(f"LAMINAR_BROKER_URL: {error}") from error


def _networks(text: str) -> tuple[Network, ...]:
    try:
        return read_networks(text)
    except ValueError as error:
        raise MissingSetting(
            f"LAMINAR_TRUSTED_PROXIES: {error}; write addresses or networks such as 10.0.0.7 or 10.0.0.0/8, by commas"
        ) from error


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
