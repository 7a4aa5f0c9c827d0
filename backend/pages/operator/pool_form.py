"""The form of a pool: what stands in it, what is read from it, and which of its fields a refusal means.

Invariant: a form that shows only a part of a pool leaves the rest as it is.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from django.http import HttpRequest

from backend.errors import Invalid, Refusal
from backend.pages.operator.frame import count_of, optional_count_of, text_of
from backend.pools.clusters.settings import LONGEST_FLAVOR, LONGEST_POOL_NAME
from backend.pools.models import ResourcePool

LABELS: Final[Mapping[str, str]] = {
    "name": "Name",
    "flavor": "Kind of device",
    "capacity": "Devices",
    "device_gb": "Memory of each, GB",
    "device": "What its jobs take",
    "labels": "Labels of its hosts",
    "autoscales": "Its Ray adds hosts",
    "ray_url": "Address of its Ray",
    "ray_token": "File of its token",
}
_LONGEST: Final = 2_000


def typed_in(request: HttpRequest) -> dict[str, Any]:
    """Raises `Invalid`."""
    given: dict[str, Any] = {
        "name": _words(request, "name", LONGEST_POOL_NAME),
        "flavor": _words(request, "flavor", LONGEST_FLAVOR),
        "capacity": count_of(request, "capacity", LABELS["capacity"]),
        "device_gb": optional_count_of(request, "device_gb", LABELS["device_gb"]),
    }
    if "device" in request.POST:
        given |= {
            "device": text_of(request, "device") or None,
            "labels": _selector(request.POST.get("labels", "")[:_LONGEST]),
            "autoscales": request.POST.get("autoscales") == "yes",
            "ray_url": request.POST.get("ray_url", "").strip()[:_LONGEST],
            "ray_token": text_of(request, "ray_token"),
        }
    return given


def lines_of(pool: ResourcePool) -> str:
    """Its labels as they are typed."""
    return "\n".join(f"{label}={choice}" for label, choice in sorted(pool.labels.items()))


@contextmanager
def fields_named() -> Iterator[None]:
    """A refusal says which field it means by the words beside it."""
    try:
        yield
    except Refusal as refusal:
        refusal.errors = tuple(
            replace(each, message=f"{LABELS[name]}: {each.message[:1].lower()}{each.message[1:]}")
            if (name := each.pointer.strip("/").partition("/")[0]) in LABELS
            else each
            for each in refusal.errors
        )
        raise


def _words(request: HttpRequest, name: str, most: int) -> str:
    typed = text_of(request, name)
    if not 1 <= len(typed) <= most:
        raise Invalid(f"{LABELS[name]}: 1 to {most} letters; got {len(typed)}.")
    return typed


def _selector(typed: str) -> dict[str, str]:
    selector: dict[str, str] = {}
    for line in filter(None, map(str.strip, typed.splitlines())):
        label, sign, choice = map(str.strip, line.partition("="))
        if not sign or label in selector:
            raise Invalid(f"{LABELS['labels']}: a line each, such as accelerator=H100; got {line[:60]}.")
        selector[label] = choice
    return selector
