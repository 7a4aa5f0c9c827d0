"""GET /downloads/checkpoints/<token>: the bytes behind a signed link, which needs no key and no cookie."""

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.views.decorators.http import require_safe

from backend.api.problems import problem_response
from backend.checkpoints.downloads.export import folder_name, tar_num_bytes, tar_stream, unblocked
from backend.checkpoints.downloads.links import checkpoint_of_link
from backend.checkpoints.files import Elsewhere, files_of
from backend.clock import database_now
from backend.errors import NotFound, Refusal


@require_safe
def download(request: HttpRequest, token: str) -> HttpResponseBase:
    try:
        checkpoint = checkpoint_of_link(token, now=database_now())
        files = files_of(checkpoint)
    except Refusal as refusal:
        return problem_response(request, refusal)
    except Elsewhere:
        return problem_response(
            request, NotFound("This site cannot read the checkpoint's files. Report its id to an operator.")
        )
    response: HttpResponseBase
    if request.method == "HEAD":
        response = HttpResponse()
    else:
        response = StreamingHttpResponse(unblocked(tar_stream(checkpoint, files)))
    response["Content-Type"] = "application/x-tar"
    response["Content-Length"] = str(tar_num_bytes(checkpoint))
    response["Content-Disposition"] = f'attachment; filename="{folder_name(checkpoint)}.tar"'
    response["Cache-Control"] = "private, no-store"
    response["Referrer-Policy"] = "no-referrer"
    return response
