"""The API reference at /api/v1/docs, generated from the OpenAPI document.

Invariants:
- it is one page without scripts or other hosts, so the browser can search it;
- all content is from the document, except the scope that a route requires, which is read from the route.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_safe
from ninja import NinjaAPI

from backend.pages import curl
from backend.pages.programs.shapes import Described, Field, Part, described, field_of, parts_of, shapes_of

ANY_ROUTE: Final = frozenset({"400", "401", "403", "411", "413", "415", "429", "500", "503"})
"""Listed once for all routes; a route lists only its other status codes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    status: str
    about: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    name: str
    """Its operation id, also its anchor on the page."""
    method: str
    path: str
    summary: str
    about: Described
    scope: str | None
    is_deprecated: bool
    parameters: tuple[Field, ...]
    body: tuple[Part, ...]
    answers: tuple[Answer, ...]
    curl: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    title: str
    slug: str
    routes: tuple[Route, ...]


@require_safe
def api_reference(request: HttpRequest, api: NinjaAPI) -> HttpResponse:
    context = reference(api) | {"document": reverse(f"{api.urls_namespace}:openapi-json")}
    return render(request, "pages/programs/reference.html", context)


@cache  # routes do not change while a process lives
def reference(api: NinjaAPI) -> dict[str, Any]:
    document, scopes = api.get_openapi_schema(), dict(_scopes(api))
    sections: dict[str, list[Route]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            route = _route(path, method, operation, scopes.get(operation["operationId"]))
            sections.setdefault(operation["tags"][0], []).append(route)
    return {
        "about": document["info"]["description"].split("\n\n"),
        "sections": [
            Section(title=title, slug=title.lower().replace(" ", "-"), routes=tuple(routes))
            for title, routes in sections.items()
        ],
        "shapes": list(shapes_of(document["components"]["schemas"])),
    }


def _scopes(api: NinjaAPI) -> Iterator[tuple[str, str | None]]:
    for bound in api._get_bound_routers():
        for view in bound.path_operations.values():
            for operation in view.operations:
                auth = operation.auth_callbacks[0] if operation.auth_callbacks else None
                yield operation.operation_id or api.get_openapi_operation_id(operation), getattr(auth, "scope", None)


def _route(path: str, method: str, operation: Mapping[str, Any], scope: str | None) -> Route:
    return Route(
        name=operation["operationId"],
        method=method.upper(),
        path=path,
        summary=operation["summary"],
        about=described(operation.get("description", "")),
        scope=scope,
        is_deprecated=operation.get("deprecated", False),
        parameters=tuple(_parameter(each) for each in operation.get("parameters", ())),
        body=_content(operation.get("requestBody", {})),
        answers=tuple(
            Answer(status=str(status), about=answer["description"], parts=_content(answer))
            for status, answer in operation["responses"].items()
            if str(status) not in ANY_ROUTE
        ),
        curl=_curl(method.upper(), path, operation.get("requestBody", {})),
    )


def _parameter(given: Mapping[str, Any]) -> Field:
    schema = {"description": given.get("description", "")} | given["schema"]
    return field_of(given["name"], schema, required=given["required"], where=given["in"])


def _content(given: Mapping[str, Any]) -> tuple[Part, ...]:
    parts: list[Part] = []
    for kind, each in given.get("content", {}).items():
        parts += [Part(", or "), Part(f"as {kind}: ")] if parts else []
        parts += parts_of(each["schema"]) if each.get("schema") else [Part(kind)]
    return tuple(parts)


def _curl(method: str, path: str, body: Mapping[str, Any]) -> str:
    if "application/octet-stream" in body.get("content", {}):
        return f"{curl.call(method, path)} \\\n  --data-binary @FILE"
    return f"{curl.call(method, path)} \\\n  --json @BODY.json" if body else curl.call(method, path)
