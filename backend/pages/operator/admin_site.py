"""Django's own admin, for looking only. What operators change they change on their pages, through the services.

Invariants:
- whatever is registered, ours or of a package, is shown and never added to, changed or deleted, and has no actions;
- a request that could change something is refused before any view of a model sees it;
- what would let its reader in somewhere (seeds of second factors, tokens and secrets of providers) is not shown at all.
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
"""EmailAddress has a page of the person's own, and `manage.py account`."""


class ReadOnly:
    """The methods by which an admin of a model asks what may be done."""

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
        def looked_at(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            if request.method not in LOOKS and not leaves:
                raise PermissionDenied("The admin only shows; operators' pages change.")
            return inner(request, *args, **kwargs)

        return looked_at

    def login(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """One sign-in for everybody: the admin's own has no limit on guesses."""
        answer: HttpResponse = secure_admin_login(super().login)(request, extra_context)
        return answer

    def password_change(  # type: ignore[override]  # no page of its own
        self, request: HttpRequest, extra_context: Any = None
    ) -> HttpResponse:
        """Where everybody does it, and guesses at the present one are counted."""
        return redirect("account_change_password")
