"""The server's URL and the key: from the environment, else from a profile in ~/.config/laminar/config.toml.

Invariants:
- only the user can read the file (0600, its folder 0700) from its first byte on; it is replaced atomically; a file that
  others can read is refused;
- a stored key is sent only to the URL with which it was stored: LAMINAR_URL alone never sends it elsewhere;
- a key is never displayed: the `repr` of `Login` omits it.
"""

import json
import os
import re
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from .errors import BadSettings

DEFAULT = "default"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,40}")
_KEY = re.compile(r"[\x21-\x7e]{8,200}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    url: str
    key: str = field(repr=False)
    source: str = ""


def config_file(environment: Mapping[str, str] = os.environ) -> Path:
    base = environment.get("XDG_CONFIG_HOME", "")
    return (Path(base) if base else Path.home() / ".config") / "laminar" / "config.toml"


def resolve_login(profile: str | None = None, *, environment: Mapping[str, str] = os.environ) -> Login:
    """Raises `BadSettings` with the next step."""
    url, key = environment.get("LAMINAR_URL", ""), environment.get("LAMINAR_API_KEY", "")
    name = profile or environment.get("LAMINAR_PROFILE", "") or None
    if profile is None and url and key:
        return Login(url=checked_url(url), key=checked_key(key), source="the environment")
    path = config_file(environment)
    stored = stored_profiles(path)
    name = name or DEFAULT
    login = stored.get(name)
    if profile is not None:  # an explicit profile takes precedence over the environment
        if login is None:
            raise BadSettings(f"Profile {name} does not exist. Run `laminar login --profile {name}`.")
        return login
    if url and login is not None and checked_url(url) != login.url:
        raise BadSettings(
            f"LAMINAR_URL differs from the server of profile {name} ({login.url}), so its key is not sent there. "
            "Set LAMINAR_API_KEY too, or log in with --profile."
        )
    if key and login is not None:
        return Login(url=login.url, key=checked_key(key), source="LAMINAR_API_KEY")
    if login is None:
        missing = "LAMINAR_URL" if key else "LAMINAR_API_KEY" if url else "LAMINAR_URL and LAMINAR_API_KEY"
        raise BadSettings(f"Not logged in. Run `laminar login`, or set {missing}.")
    return login


def stored_profiles(path: Path) -> dict[str, Login]:
    try:
        if path.stat().st_mode & 0o077 and os.name == "posix":
            raise BadSettings(f"{path} contains keys, but other users can read it. Run `chmod 600 {path}`.")
        document = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
        raise BadSettings(f"{path} cannot be read: {type(problem).__name__}. Fix or remove it.") from None
    found = document.get("profiles", {})
    try:
        return {
            str(name): Login(url=checked_url(each["url"]), key=checked_key(each["key"]), source=f"the profile {name}")
            for name, each in found.items()
        }
    except (AttributeError, KeyError, TypeError):
        raise BadSettings(f"{path} is not valid. Remove it and run `laminar login` again.") from None


def store_profile(path: Path, name: str, login: Login) -> None:
    if not _NAME.fullmatch(name):
        raise BadSettings("A profile name must have 1 to 40 letters, digits, - or _.")
    profiles = stored_profiles(path) | {name: login}
    _replace(path, profiles)


def forget_profile(path: Path, name: str) -> bool:
    profiles = stored_profiles(path)
    if profiles.pop(name, None) is None:
        return False
    _replace(path, profiles)
    return True


def checked_url(text: str) -> str:
    parts = urlsplit(text.strip())
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        raise BadSettings("The URL must be like https://laminar.example.org.")
    if parts.username or parts.password:
        raise BadSettings("The URL must not contain a user name or password.")
    return text.strip().rstrip("/").removesuffix("/api/v1")


def is_open_to_all(url: str) -> bool:
    """Whether a key would cross a network unencrypted."""
    parts = urlsplit(url)
    return parts.scheme == "http" and parts.hostname not in {"localhost", "127.0.0.1", "::1"}


def checked_key(text: str) -> str:
    key = text.strip()
    if not _KEY.fullmatch(key):
        raise BadSettings("This is not an API key. A key is one line like lam_live_…")
    return key


def _replace(path: Path, profiles: Mapping[str, Login]) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lines = ["# Written by `laminar login`. Contains API keys: do not share this file.\n"]
    for name, login in profiles.items():
        lines.append(f"\n[profiles.{name}]\nurl = {json.dumps(login.url)}\nkey = {json.dumps(login.key)}\n")
    handle, temporary = tempfile.mkstemp(prefix=".config-", dir=path.parent)  # 0600 from the beginning
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.writelines(lines)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
