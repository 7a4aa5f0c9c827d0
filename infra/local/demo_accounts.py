"""`.laminar/local.json`: addresses and sign-ins, for programs and for the person who runs it."""

import json
from collections.abc import Mapping
from typing import Any

from infra.local.home import write_private
from infra.local.services.site import Site


def write_local_json(site: Site, account: Mapping[str, Any], *, password: str, api_key: str) -> None:
    content = {
        "url": site.url,
        "api_key": api_key,
        "team": account["team"],
        "project": account["project"],
        "user": account["user"],
        "password": password,
        "postgres": site.postgres.url(),
        "ray": site.ray.url,
    }
    write_private(site.home.local_json, json.dumps(content, indent=1) + "\n")
