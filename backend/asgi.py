"""The web process: `uvicorn backend.asgi:application`. Pages and REST through Django, the live socket at /ws/live."""

import os

from channels.routing import ProtocolTypeRouter, URLRouter
from django.urls import path, re_path

from backend.api.threaded_handler import threaded_django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "backend.settings")
django_application = threaded_django()  # first: it loads the apps that the imports below need

from django.conf import settings  # noqa: E402

from backend.api.limits.body_limit import limit_bodies  # noqa: E402
from backend.borders.wall import without_hostile_cookies  # noqa: E402
from backend.ports import refuse_unfilled  # noqa: E402
from backend.telemetry.live.consumers import LiveConsumer  # noqa: E402
from backend.telemetry.origin import only_from, refuse  # noqa: E402

refuse_unfilled()
sockets = URLRouter(
    [
        path("ws/live", LiveConsumer.as_asgi()),
        re_path("", refuse),  # type: ignore[arg-type]  # channels routes to ASGI applications
    ]
)
application = ProtocolTypeRouter(
    {
        "http": limit_bodies(django_application),  # type: ignore[arg-type]  # Django calls its scope a dict
        "websocket": only_from(settings.CSRF_TRUSTED_ORIGINS[0], without_hostile_cookies(sockets)),
    }
)
