"""The form of a pool: its initial values, its parsing, and the field of each error.

Invariant: fields that a form does not contain stay unchanged.
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
    "device_gb": "Memory per device, GB",
    "device": "Devices of its jobs",
    "labels": "Host labels",
    "autoscales": "Ray autoscales",
    "ray_url": "Ray address",
    "ray_token": "Ray token file",
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
    """The pool's labels, in the form's syntax."""
    return "\n".join(f"{label}={choice}" for label, choice in sorted(pool.labels.items()))


@contextmanager
def fields_named() -> Iterator[None]:
    """Prefixes each error with the label of its field."""
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
        raise Invalid(f"{LABELS[name]}: 1 to {most} characters; got {len(typed)}.")
    return typed


def _selector(typed: str) -> dict[str, str]:
    selector: dict[str, str] = {}
    for line in filter(None, map(str.strip, typed.splitlines())):
        label, sign, choice = map(str.strip, line.partition("="))
        if not sign or label in selector:
            raise Invalid(f"{LABELS['labels']}: one per line, such as accelerator=H100; got {line[:60]}.")
        selector[label] = choice
    return selector
