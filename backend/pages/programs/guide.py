"""The figures in the guide for programs (limits, ages, tries), read from the code that applies them."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from django.conf import settings

from backend.api.idempotency import KEPT_FOR
from backend.api.limits import rate_limit
from backend.api.limits.rate_limit import Rate
from backend.api.pagination import DEFAULT_LIMIT, MAX_LIMIT
from backend.pages.programs.wheel import wheel_name
from backend.webhooks.services import BOTH_SECRETS_FOR
from backend.webhooks.settling import RETRY_AFTER_S
from backend.webhooks.transport import PATIENCE_S

EXAMPLES: Final[Path] = settings.ROOT / "frontend" / "examples"
IDEMPOTENT: Final = (
    "POST /api/v1/jobs",
    "POST /api/v1/jobs/{job_id}/retry",
    "POST /api/v1/checkpoints/{checkpoint_id}/evaluate",
)
_COUNTED: Final = (
    (rate_limit.REQUESTS, "All requests of a team"),
    (rate_limit.READS, "GET requests of one key"),
    (rate_limit.WRITES, "Other requests of one key"),
    (rate_limit.SUBMITS, "Jobs submitted by a team"),
    (rate_limit.SENT, "KiB sent by a team, except files"),
    (rate_limit.STREAMS, "Event and log streams opened by a team"),
    (rate_limit.LOOK_UPS, "Updates of a team's open pages by socket"),
    (rate_limit.UNKNOWN_KEYS, "Requests of one address with an unknown key"),
)


@dataclass(frozen=True, slots=True)
class Limit:
    policy: str
    about: str
    most: int
    window_s: int


def limits() -> Iterator[Limit]:
    for rate, about in _COUNTED:
        yield Limit(rate.name, about, _most(rate), rate.window_s)


def guide() -> dict[str, Any]:
    return {
        "site": settings.ENVIRONMENT.public_url,
        "wheel_url": wheel_url(),
        "wheel_name": wheel_name(),
        "limits": list(limits()),
        "idempotent": IDEMPOTENT,
        "kept_hours": KEPT_FOR.total_seconds() / 3_600,
        "page_size": DEFAULT_LIMIT,
        "most_on_a_page": MAX_LIMIT,
        "webhook_patience_s": PATIENCE_S,
        "webhook_tries": len(RETRY_AFTER_S) + 1,
        "webhook_days": sum(RETRY_AFTER_S) / 86_400,
        "both_secrets_hours": BOTH_SECRETS_FOR.total_seconds() / 3_600,
        "examples": {path.stem: example(path.name) for path in sorted(EXAMPLES.iterdir()) if path.is_file()},
    }


def wheel_url() -> str:
    return f"{settings.ENVIRONMENT.public_url}/client/{wheel_name()}"


def example(name: str) -> str:
    """Ready to paste: the one URL that the example cannot read from its environment is filled in."""
    return (EXAMPLES / name).read_text(encoding="utf-8").replace("WHEEL_OF_THIS_SITE", wheel_url())


def _most(rate: Rate) -> int:
    return max(1, round(rate.limit * settings.ENVIRONMENT.rate_scale))
