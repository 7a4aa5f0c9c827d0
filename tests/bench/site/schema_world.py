"""The world of `schema_calls`: a server, and teams that own one of everything, with a key of every role."""

import json
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

NOBODY = "nobody"


@dataclass(frozen=True, slots=True)
class Owned:
    """A new team with one of everything: what was called before may have deleted, revoked or renamed the last one's."""

    keys: dict[str, str | None]
    """Role to API key, None for an anonymous caller."""
    ids: dict[str, str]
    """By the name of the parameter in a route's path."""


def new_team() -> Owned:
    from tests.backend.tenant_callers import INSIDERS, OUTSIDER
    from tests.backend.tenant_world import make_world

    world = make_world(datetime.now(UTC), label=f"-{uuid.uuid4().hex}")
    roles = [role for role in (*INSIDERS, OUTSIDER) if role != "narrow key"]
    keys = {NOBODY: None} | {role: world.key_of(role, scope=None) for role in roles}
    return Owned(keys=keys, ids=world.ids)


def api_document() -> dict[str, Any]:
    """As it is served: JSON has no numbers for names."""
    from ninja.responses import NinjaJSONEncoder

    from backend.rest import api

    found: dict[str, Any] = json.loads(json.dumps(api.get_openapi_schema(), cls=NinjaJSONEncoder))
    return found
