"""The public REST API: every app's routes under /api/v1, one shape of errors, API keys only.

Above all apps, so that these can use backend.api (errors, paging, idempotency, rate limits) without a cycle.
"""

import pkgutil
import re
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module
from typing import Any

from ninja import NinjaAPI, Router
from ninja.openapi.schema import OpenAPISchema
from ninja.operation import Operation, PathView

import backend
from backend.accounts.keys.bearer import team_and_key
from backend.api.bodies import JsonParser
from backend.api.handlers import answer_with_problems
from backend.api.limits.rate_limit import EveryRequest
from backend.api.problems import CONTENT_TYPE

# `api.py` or `NOUN_api.py` of an app, and every module of a room named `rest`. The engine's API is separate.
_ROUTES = re.compile(r"(\.|_)api$|\.rest\.\w+$")


class PublicApi(NinjaAPI):
    def get_openapi_operation_id(self, operation: Operation) -> str:
        """Made of method and path, so it stays when code moves: get_job, post_job_cancel, get_jobs."""
        return operation_id(operation.methods[0], operation.path)

    def get_openapi_schema(
        self, *, path_prefix: str | None = None, path_params: dict[str, Any] | None = None
    ) -> OpenAPISchema:
        return _document(self, self.get_root_path(path_params or {}) if path_prefix is None else path_prefix)

    def make_openapi_schema(self, path_prefix: str) -> OpenAPISchema:
        """ninja declares application/json for every response; errors are problem+json."""
        document = super().get_openapi_schema(path_prefix=path_prefix)
        for methods in document["paths"].values():
            for operation in methods.values():
                for status, response in operation["responses"].items():
                    if int(status) >= 400:
                        response["content"] = {CONTENT_TYPE: response["content"]["application/json"]}
        _rename_tuple_items(document)
        return document


@cache
def _document(api: PublicApi, path_prefix: str) -> OpenAPISchema:
    """Made once: it takes a second of a core, and every visitor may fetch it."""
    return api.make_openapi_schema(path_prefix)


def _rename_tuple_items(node: object) -> None:
    """ninja writes a tuple's members as `items`, as older JSON Schema did; since 2020-12 they are `prefixItems`."""
    if isinstance(node, dict):
        if isinstance(node.get("items"), list):
            node["prefixItems"] = node.pop("items")
        for child in node.values():
            _rename_tuple_items(child)
    elif isinstance(node, list):
        for child in node:
            _rename_tuple_items(child)


def operation_id(method: str, path: str) -> str:
    """A placeholder makes the preceding word singular: GET /jobs/{job_id}/events is get_job_events."""
    words: list[str] = []
    for part in re.split(r"[/:]", path.strip("/")):
        if part.startswith("{"):
            words[-1] = re.sub("s$", "", re.sub("ies$", "y", words[-1]))
        else:
            words.append(part.replace("-", "_"))
    return "_".join([method.lower(), *words])


api = PublicApi(
    title="Laminar",
    version="1",
    description="Submit and monitor jobs that post-train language models by reinforcement learning.\n\n"
    "Send an API key as a bearer token. Errors are RFC 9457 problems; `errors` lists every invalid field.",
    parser=JsonParser(),
    throttle=EveryRequest(team_and_key),
    docs_url=None,  # backend.pages serves the reference
    urls_namespace="api-v1",
)
answer_with_problems(api)


def routers() -> Iterator[Router]:
    """The routers of every app, found by module name; jobs first, which is their order in the documentation."""
    names = [
        module.name
        for module in pkgutil.walk_packages(backend.__path__, "backend.", onerror=import_module)
        if _ROUTES.search(module.name) and not module.ispkg and not module.name.endswith(".internal_api")
    ]
    for name in sorted(names, key=lambda name: (not name.startswith("backend.jobs."), name)):
        router = getattr(import_module(name), "router", None)
        if router is not None:
            yield router


def mount(mounted: Iterable[Router]) -> None:
    """Routers may share a path, GET in one and PATCH in another: Django would only try the first of them."""
    views: dict[str, PathView] = {}
    for router in mounted:
        for path, view in list(router.path_operations.items()):
            if path in views:
                views[path].operations += router.path_operations.pop(path).operations
            else:
                views[path] = view
        api.add_router("", router)


mount(routers())
