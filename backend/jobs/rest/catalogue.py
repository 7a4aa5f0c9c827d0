"""REST: the schema of a spec, and templates to start from. Readable with any valid key."""

from typing import Any

from django.http import HttpRequest
from ninja import Router

from backend.accounts.keys.bearer import ANY_KEY
from backend.api.pagination import Page
from backend.api.problems import problems
from backend.borders.types import PathId
from backend.errors import NotFound
from backend.jobs.rest.representations import TemplateOut
from backend.jobs.submitting.templates import Template, gallery
from engine.presets.by_model import without_presets
from engine.spec.job import JobSpec

router = Router(tags=["Catalogue"])


@router.get("/templates", auth=ANY_KEY, response={200: Page[TemplateOut]} | problems(), summary="List job templates")
def list_templates(request: HttpRequest) -> Page[TemplateOut]:
    return Page(data=[_represent(each) for each in gallery()])


@router.get("/templates/{name}", auth=ANY_KEY, response={200: TemplateOut} | problems(404), summary="Get a template")
def show_template(request: HttpRequest, name: PathId) -> TemplateOut:
    template = next((each for each in gallery() if each.name == name), None)
    if template is None:
        raise NotFound("Template not found. GET /templates lists all templates.")
    return _represent(template)


@router.get("/schemas/job-spec", auth=ANY_KEY, response={200: dict[str, Any]} | problems(), summary="Get JSON Schema")
def job_spec_schema(request: HttpRequest) -> dict[str, Any]:
    return JobSpec.model_json_schema()


def _represent(template: Template) -> TemplateOut:
    spec = template.spec
    return TemplateOut(name=template.name, title=spec.name, about=template.about, spec=without_presets(spec))
