"""The environment of every control-plane process: each variable is declared once, read once, and fails loudly.

infra/local/ and docker-compose.yml set exactly these variables; `python -m infra.variables` documents them.
"""

import os
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Final

from backend.borders.proxies import Network
from backend.missing import MissingSetting
from backend.outside.addresses import broker_address, database_address
from backend.variables import (
    Variable,
    declared,
    read_address,
    read_authorities,
    read_collector,
    read_factor,
    read_hosts,
    read_log_format,
    read_metrics_token,
    read_names,
    read_proxies,
    read_switch,
    read_words,
    shared_with_nodes,
    whole_number,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Its repr hides the values: half of them are passwords, and Django's debug page prints it."""

    database_url: str = declared(
        "Address of Postgres (tested with 18), or of a pooler in front of it; on another machine with "
        "`?sslmode=verify-full`."
    )
    database_direct_url: str = declared(
        "Address of Postgres itself, where `LAMINAR_DATABASE_URL` is a pooler in transaction mode.",
        default="",
        when_unset="no pooler",
    )
    broker_url: str = declared("Address of Valkey or Redis; on another machine `rediss://`.")
    secret_key: str = declared(
        "Signs sessions, cookies and the engine's tokens; see [Rotation of secrets](#rotation-of-secrets)."
    )
    secret_keys_of_before: tuple[str, ...] = declared(
        "Earlier values of `LAMINAR_SECRET_KEY`, separated by spaces: still accepted for data they signed or sealed.",
        default="",
        when_unset="none",
        read=read_words,
    )
    public_url: str = declared(
        "The site's address in browsers; with https, cookies become secure and plain http is redirected.",
        read=read_address,
    )
    control_url: str = declared(
        "Address at which Ray nodes reach the web server itself: redirects are not followed, and a proxy for browsers "
        "answers 404 there. May be http on a private network, whatever the public address is.",
        read=read_address,
    )
    ray_url: str = declared(
        "Address of the Ray cluster's Jobs API; the cluster's image must hold `engine/`.", read=read_address
    )
    ray_token_file: Path = declared("File with that Ray's token (`RAY_AUTH_MODE=token`).", read=Path)
    ray_tokens_dir: str = declared(
        "Folder with the tokens of further Ray clusters, one file each, named by pools. Keep no other files in it.",
        default="",
        when_unset="pools with their own Ray cluster send no token",
    )
    store_dir: Path = shared_with_nodes("LAMINAR_STORE_DIR", read=Path)  # untrusted: Ray nodes may write it
    site_dir: Path = declared(
        "Folder shared by web, worker and beat, and not accessible to Ray nodes: static files, the audit log's anchors "
        "and key. Not within `LAMINAR_STORE_DIR`.",
        default="",
        when_unset="`site` next to the store",
        read=Path,
    )
    allowed_hosts: tuple[str, ...] = declared(
        "Host names of the site, separated by commas; requests for another name get 400.",
        read=read_hosts,
    )
    debug: bool = declared("1 shows tracebacks in the browser; leave it at 0.", default="0", read=read_switch)
    log_format: str = shared_with_nodes("LAMINAR_LOG_FORMAT", read=read_log_format)
    otlp_url: str = shared_with_nodes("LAMINAR_OTLP_URL", read=read_collector)
    store_url: str = shared_with_nodes("LAMINAR_STORE_URL")
    store_endpoint: str = shared_with_nodes("LAMINAR_STORE_ENDPOINT")
    store_region: str = shared_with_nodes("LAMINAR_STORE_REGION")
    store_addressing: str = shared_with_nodes("LAMINAR_STORE_ADDRESSING")
    ca_file: str = declared(
        "File of your own certificate authorities (PEM), trusted in addition to the public ones.",
        default="",
        when_unset="the public ones only",
        read=read_authorities,
    )
    keep_points_days: int = declared(
        "Days after a job's end until its long series are reduced to their rollups.", default="90", read=whole_number(0)
    )
    keep_logs_days: int = declared(
        "Days after a job's end until its log lines are removed; 0: never.", default="90", read=whole_number(0)
    )
    keep_trajectories_days: int = declared(
        "Days after a job's end until its trajectories are removed, in the database and in the store; 0: never.",
        default="90",
        read=whole_number(0),
    )
    audit_dir: Path = declared(
        "Folder for the signed anchors of the audit log, preferably not on the database's disk.",
        default="",
        when_unset="`audit` in the site folder",
        read=Path,
    )
    audit_key_file: Path = declared(
        "Ed25519 key that signs the anchors; generated there if the file does not exist.",
        default="",
        when_unset="`audit/signing_key.pem` in the site folder",
        read=Path,
    )
    trusted_proxies: tuple[Network, ...] = declared(
        "Proxies whose X-Forwarded-For is trusted: addresses and networks such as `10.0.0.0/8`, separated by "
        "spaces or commas. Include a proxy on the same machine too.",
        default="",
        when_unset="none",
        read=read_proxies,
    )
    metrics_token: str = declared(
        "Bearer token for /metrics from another machine, through a proxy, or on a site whose address is https.",
        default="",
        when_unset="this machine only",
    )
    metrics_token_file: str = declared(
        "File that holds `LAMINAR_METRICS_TOKEN` instead.", default="", when_unset="none"
    )
    metrics_dir: str = declared(
        "Folder in which several web processes on one port collect their metrics.",
        default="",
        when_unset="one web process",
    )
    rate_scale: float = declared("Factor for every rate limit of the API.", default="1", read=read_factor)
    webhooks_to_loopback: bool = declared(
        "1 lets webhooks go to http://127.0.0.1, for development.", default="0", read=read_switch
    )
    email_url: str = declared(
        "Mail server: `smtp://user:password@host:587` (STARTTLS), `smtp+tls://host:587` (STARTTLS, no "
        "password), `smtps://user:password@host:465` or `smtp://host:25` (in the clear).",
        default="",
        when_unset="no mail; pass on the links of invitations and of `manage.py account` yourself",
    )
    email_from: str = declared("Sender of that mail.", default="")
    session_idle_hours: int = declared(
        "Hours after which an unused session ends.", default="12", read=whole_number(1)
    )  # a night, not a day
    session_days: int = declared("Days after which a session ends in any case.", default="14", read=whole_number(1))
    breached_passwords_file: str = declared(
        "File of passwords known from breaches, in Have I Been Pwned's format (SHA-1, ordered by hash).",
        default="",
        when_unset="only the most common ones are refused",
    )
    open_sign_up: bool = declared(
        "1 lets anyone with a verified address create an account with its own team; needs mail.",
        default="0",
        read=read_switch,
    )
    oidc_issuer: str = declared(
        "OpenID provider for sign-in.", default="", when_unset="passwords only", read=read_address
    )
    oidc_client_id: str = declared("The site's client id at the provider.", default="")
    oidc_secret_file: str = declared("File with the site's client secret at the provider.", default="")
    oidc_name: str = declared("Label of the sign-in button.", default="single sign-on")
    oidc_domains: tuple[str, ...] = declared(
        "Mail domains whose addresses may sign in through the provider, separated by spaces or commas.",
        default="",
        when_unset="all",
        read=read_names,
    )

    def __repr__(self) -> str:
        return f"<the settings of {self.public_url}>"


_NAMES: Final = {field: f"LAMINAR_{field.name.upper()}" for field in fields(Environment)}
DECLARED: Final[dict[str, Variable]] = {name: field.metadata["variable"] for field, name in _NAMES.items()}
# Not required; infra/local passes on those that are set.
OPTIONAL: Final = frozenset(name for name, variable in DECLARED.items() if variable.default is not None)


def read_environment(source: dict[str, str] | None = None) -> Environment:
    """Raises `MissingSetting`."""
    values = dict(os.environ) if source is None else source
    missing = [name for name in DECLARED if name not in OPTIONAL and not values.get(name)]
    if missing:
        raise MissingSetting(
            f"the environment lacks {', '.join(missing)}; `make up` and docker-compose.yml set them, "
            "and infra/OPERATING.md describes them"
        )
    given = {name: values.get(name) or variable.default or "" for name, variable in DECLARED.items()}
    _fill_folders(given)
    read = {field.name: DECLARED[name].read(name, given[name]) for field, name in _NAMES.items()}
    return _complete(Environment(**read))


def _fill_folders(given: dict[str, str]) -> None:
    """Sets the folders whose default derives from another variable."""
    site = given["LAMINAR_SITE_DIR"] or str(Path(given["LAMINAR_STORE_DIR"]).parent / "site")
    audit = given["LAMINAR_AUDIT_DIR"] or f"{site}/audit"
    key_file = given["LAMINAR_AUDIT_KEY_FILE"] or f"{site}/audit/signing_key.pem"
    given |= {"LAMINAR_SITE_DIR": site, "LAMINAR_AUDIT_DIR": audit, "LAMINAR_AUDIT_KEY_FILE": key_file}


def _complete(read: Environment) -> Environment:
    """Combines values that depend on each other. Raises `MissingSetting`."""
    store, site = read.store_dir.resolve(), read.site_dir.resolve()
    if store in (site, *site.parents):
        raise MissingSetting(
            f"LAMINAR_SITE_DIR: must be a folder outside of LAMINAR_STORE_DIR ({read.store_dir}), which Ray nodes may "
            f"write, got {read.site_dir}"
        )
    try:
        broker = broker_address(read.broker_url, read.ca_file)
    except ValueError as error:
        raise MissingSetting(f"LAMINAR_BROKER_URL: {error}") from error
    return replace(
        read,
        database_url=database_address(read.database_url, read.ca_file),
        database_direct_url=database_address(read.database_direct_url, read.ca_file),
        broker_url=broker,
        metrics_token=read_metrics_token(read.metrics_token, read.metrics_token_file),
    )


def oidc_app(environment: Environment) -> list[dict[str, object]]:
    """The one OpenID provider, in allauth's format; empty if it is not configured."""
    if not environment.oidc_issuer:
        return []
    if not environment.oidc_client_id or not environment.oidc_secret_file:
        raise MissingSetting("LAMINAR_OIDC_ISSUER also needs LAMINAR_OIDC_CLIENT_ID and LAMINAR_OIDC_SECRET_FILE")
    return [
        {
            "provider_id": "sso",
            "name": environment.oidc_name,
            "client_id": environment.oidc_client_id,
            "secret": Path(environment.oidc_secret_file).read_text().strip(),
            "settings": {"server_url": environment.oidc_issuer, "oauth_pkce_enabled": True},
        }
    ]
