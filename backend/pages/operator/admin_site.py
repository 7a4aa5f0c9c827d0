"""Django's admin, read-only. Operators make changes on their own pages, through the services.

Invariants:
- every registered model, ours or a package's, can be viewed but not added, changed or deleted, and has no actions;
- a request with an unsafe method is refused before it reaches a model's view;
- credentials (seeds of second factors, tokens and secrets of providers) are not registered at all.
"""

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, Final

from allauth.account.decorators import secure_admin_login
from allauth.account.models import EmailAddress
from allauth.mfa.models import Authenticator
from allauth.socialaccount.models import SocialApp, SocialToken
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect

LOOKS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
NOT_SHOWN: Final = frozenset({Authenticator, EmailAddress, SocialApp, SocialToken})
"""EmailAddress is managed on the user's own page, and by `manage.py account`."""


class ReadOnly:
    """The permission methods of a ModelAdmin."""

    def has_add_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        return {}


class ReadOnlySite(admin.AdminSite):
    def register(self, model_or_iterable: Any, admin_class: Any = None, **options: Any) -> None:
        models = model_or_iterable if isinstance(model_or_iterable, Iterable) else [model_or_iterable]
        shown = [model for model in models if model not in NOT_SHOWN]
        made = admin_class or admin.ModelAdmin
        super().register(shown, type(made.__name__, (ReadOnly, made), {}), **options)

    def admin_view(self, view: Any, cacheable: bool = False) -> Any:
        inner: Callable[..., HttpResponse] = super().admin_view(view, cacheable)
        leaves = getattr(view, "__func__", None) is admin.AdminSite.logout

        @wraps(inner)
        def checked_view(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            if request.method not in LOOKS and not leaves:
                raise PermissionDenied("The admin site is read-only. Use the operator pages to make changes.")
            return inner(request, *args, **kwargs)

        return checked_view

    def login(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Redirects to the common sign-in: the admin's own does not limit guesses."""
        answer: HttpResponse = secure_admin_login(super().login)(request, extra_context)
        return answer

    def password_change(  # type: ignore[override]  # no page of its own
        self, request: HttpRequest, extra_context: Any = None
    ) -> HttpResponse:
        """Redirects to the common page, which limits guesses of the current password."""
        return redirect("account_change_password")
