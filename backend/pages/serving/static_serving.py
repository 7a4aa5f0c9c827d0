"""Serves hashed static files. WhiteNoise, the next middleware, serves plain names."""

from collections.abc import Awaitable, Callable
from typing import Final, cast

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.decorators import sync_and_async_middleware

from backend.borders.gzipped import takes_gzip
from backend.pages.serving.hashed_files import hashed_file, plain_name

_A_YEAR: Final = "max-age=31536000, public, immutable"
Answers = Callable[[HttpRequest], HttpResponseBase | Awaitable[HttpResponseBase]]


@sync_and_async_middleware
def serve_hashed(get_response: Answers) -> Answers:
    if iscoroutinefunction(get_response):

        async def awaited(request: HttpRequest) -> HttpResponseBase:
            found = await sync_to_async(_answer)(request) if _is_asked(request) else None
            return found if found is not None else await cast(Awaitable[HttpResponseBase], get_response(request))

        return awaited

    def direct(request: HttpRequest) -> HttpResponseBase:
        response = _answer(request) if _is_asked(request) else None
        return response if response is not None else cast(HttpResponseBase, get_response(request))

    return direct


def _is_asked(request: HttpRequest) -> bool:
    return request.path_info.startswith(settings.STATIC_URL) and request.method in {"GET", "HEAD"}


def _answer(request: HttpRequest) -> HttpResponse | None:
    name = request.path_info.removeprefix(settings.STATIC_URL)
    plain = plain_name(name)
    file = hashed_file(plain) if plain is not None else None
    if file is None:
        return None
    is_small = bool(file.compressed) and takes_gzip(request)
    answer = HttpResponse(file.compressed if is_small else file.content, content_type=file.kind)
    answer["Cache-Control"] = _A_YEAR if name == file.name else "no-store"
    answer["Vary"] = "Accept-Encoding"
    if is_small:
        answer["Content-Encoding"] = "gzip"
    return answer
