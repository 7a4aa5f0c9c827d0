"""The public REST API: every app's routes under /api/v1, one shape of errors, API keys only.

Above all apps, so that they can use backend.api (errors, pages of lists, idempotency, rates) without a cycle.
"""

from typing import Any

from ninja import NinjaAPI, Swagger
from ninja.openapi.schema import OpenAPISchema

from backend.accounts.api import router as accounts_router
from backend.api.bodies import JsonParser
from backend.api.handlers import answer_with_problems
from backend.api.problems import CONTENT_TYPE
from backend.jobs.api import router as jobs_router
from backend.jobs.catalogue_api import router as catalogue_router
from backend.pools.api import router as pools_router
from backend.telemetry.api import router as telemetry_router


class PublicApi(NinjaAPI):
    def get_openapi_schema(self, **kwargs: Any) -> OpenAPISchema:
        """ninja writes application/json beside every answer; our errors are problems."""
        document = super().get_openapi_schema(**kwargs)
        for methods in document["paths"].values():
            for operation in methods.values():
                for status, response in operation["responses"].items():
                    if int(status) >= 400:
                        response["content"] = {CONTENT_TYPE: response["content"]["application/json"]}
        return document


api = PublicApi(
    title="Laminar",
    version="1",
    description="Submit jobs that post-train language models by reinforcement learning, and watch them.\n\n"
    "Send an API key as a bearer token. Errors are RFC 9457 problems; `errors` names every place at once.",
    parser=JsonParser(),
    docs=Swagger(settings={"persistAuthorization": False}),
    urls_namespace="api-v1",
)
answer_with_problems(api)
for router in (jobs_router, telemetry_router, catalogue_router, pools_router, accounts_router):
    api.add_router("", router)
