"""The installation that is backed up: the one of `make up` on this machine, or the one that the environment names.

Invariant: of the environment every setting of database, bucket and authorities means here what it means to the site.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from backend.outside.addresses import database_address
from backend.store.chosen import store_at
from backend.store.port import ObjectStore
from infra.backup.errors import BackupError
from infra.backup.repository import Repository
from infra.local.home import Home, write_private
from infra.local.services.postgres import ADMINISTRATOR, Postgres

# In the words of backend/environment.py. Files are kept by their content, under the variable that names them.
SECRETS: Final = (
    *("DATABASE_URL", "DATABASE_DIRECT_URL", "BACKUP_DATABASE_URL", "BROKER_URL"),
    *("SECRET_KEY", "SECRET_KEYS_OF_BEFORE", "METRICS_TOKEN", "EMAIL_URL"),
)
SECRET_FILES: Final = ("RAY_TOKEN_FILE", "OIDC_SECRET_FILE", "METRICS_TOKEN_FILE", "AUDIT_KEY_FILE")
SECRET_FOLDERS: Final = ("RAY_TOKENS_DIR",)  # each file as VARIABLE/NAME
# Of the bucket, as its client reads them. A session's token is over before anybody restores.
KEYS: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    database_url: str
    """Address of an account with the replication right, past a pooler."""
    tables_url: str
    """Address of the tables' owner, whose database records the last backup."""
    store: Path
    site: Path
    audit: Path | None
    """The folder of its anchors, where that is not in the site folder."""
    bucket: ObjectStore | None
    secrets: Mapping[str, str] = field(repr=False)

    @property
    def folders(self) -> list[tuple[Literal["store", "site", "audit"], Path]]:
        found: list[tuple[Literal["store", "site", "audit"], Path]] = [("store", self.store), ("site", self.site)]
        return found if self.audit is None else [*found, ("audit", self.audit)]


def source_of_home(home: Home) -> Source:
    postgres = Postgres(home=home, port=home.written_ports()["postgres"])
    secrets = {file.name: file.read_text() for file in sorted(home.secrets_folder.iterdir()) if file.is_file()}
    key = home.site / "audit" / "signing_key.pem"
    if key.is_file():
        secrets["AUDIT_KEY_FILE"] = key.read_text()
    return Source(
        database_url=postgres.url(user=ADMINISTRATOR),
        tables_url=postgres.url(user=ADMINISTRATOR),
        store=home.store,
        site=home.site,
        audit=_apart(os.environ, home.site),
        bucket=_bucket(os.environ, home.store),
        secrets=secrets,
    )


def source_of_environment(values: Mapping[str, str]) -> Source:
    missing = [name for name in ("LAMINAR_DATABASE_URL", "LAMINAR_STORE_DIR") if not values.get(name)]
    if missing:
        raise BackupError(f"the environment lacks {', '.join(missing)}; see infra/OPERATING.md, or pass --home")
    store = Path(values["LAMINAR_STORE_DIR"])
    site = Path(values.get("LAMINAR_SITE_DIR") or store.parent / "site")
    return Source(
        database_url=replicating_url(values),
        tables_url=database_address(_itself(values), values.get("LAMINAR_CA_FILE", "")),
        store=store,
        site=site,
        audit=_apart(values, site),
        bucket=_bucket(values, store),
        secrets=_secrets(values, site),
    )


def replicating_url(values: Mapping[str, str]) -> str:
    url = values.get("LAMINAR_BACKUP_DATABASE_URL") or _itself(values)
    return database_address(url, values.get("LAMINAR_CA_FILE", ""))


def _itself(values: Mapping[str, str]) -> str:
    """Postgres, past a pooler."""
    return values.get("LAMINAR_DATABASE_DIRECT_URL") or values["LAMINAR_DATABASE_URL"]


def _secrets(values: Mapping[str, str], site: Path) -> dict[str, str]:
    secrets = {name: values[f"LAMINAR_{name}"] for name in SECRETS if values.get(f"LAMINAR_{name}")}
    secrets |= {name: values[name] for name in KEYS if values.get(name)}
    for name in SECRET_FILES:
        path = values.get(f"LAMINAR_{name}") or ""
        if name == "AUDIT_KEY_FILE" and not path:
            path = str(site / "audit" / "signing_key.pem")
        if path and Path(path).is_file():
            secrets[name] = Path(path).read_text()
    for name in SECRET_FOLDERS:
        folder = Path(values.get(f"LAMINAR_{name}") or os.devnull)
        if folder.is_dir():
            secrets |= {f"{name}/{file.name}": file.read_text() for file in sorted(folder.iterdir()) if file.is_file()}
    return secrets


def secrets_document(source: Source) -> bytes:
    return json.dumps(dict(source.secrets), indent=1).encode()


def restore_secrets(repository: Repository, id: str, home: Home, *, tell: Callable[[str], None]) -> None:
    """Those that the home lacks. Its own stay: they fit what is there."""
    file = repository.secrets / f"{id}.json"
    key = home.site / "audit" / "signing_key.pem"
    if not file.is_file():
        tell(f"no secrets in {file}: using those in {home.secrets_folder}, or generating new ones")
        return
    secrets_by_name: dict[str, str] = json.loads(file.read_text())
    for name, text in secrets_by_name.items():
        to = key if name == "AUDIT_KEY_FILE" else home.secrets_folder / name
        if not to.exists():
            to.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_private(to, text)


def restore_audit_key(
    repository: Repository, id: str, site: Path, *, owner: int | None, tell: Callable[[str], None]
) -> None:
    """Restores the signing key, unless there is one or LAMINAR_AUDIT_KEY_FILE is set: it verifies earlier anchors."""
    file, key = repository.secrets / f"{id}.json", site / "audit" / "signing_key.pem"
    if key.exists() or os.environ.get("LAMINAR_AUDIT_KEY_FILE"):
        return
    secrets_by_name: dict[str, str] = json.loads(file.read_text()) if file.is_file() else {}
    if "AUDIT_KEY_FILE" not in secrets_by_name:
        tell(f"no key of the audit log in {file}: a new one is generated, which cannot verify earlier anchors")
        return
    key.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_private(key, secrets_by_name["AUDIT_KEY_FILE"])
    if owner is not None:
        for path in (key.parent, key):
            os.chown(path, owner, owner)


def _apart(values: Mapping[str, str], site: Path) -> Path | None:
    folder = values.get("LAMINAR_AUDIT_DIR")
    return Path(folder) if folder and site not in Path(folder).parents else None


def _bucket(values: Mapping[str, str], store: Path) -> ObjectStore | None:
    url, endpoint, region, addressing = (
        values.get(f"LAMINAR_STORE_{name}", "") for name in ("URL", "ENDPOINT", "REGION", "ADDRESSING")
    )
    return store_at(url, folder=store, endpoint=endpoint, region=region, addressing=addressing) if url else None
