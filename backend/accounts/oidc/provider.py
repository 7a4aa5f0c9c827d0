"""Sign-in through an OpenID provider: allauth's flow, plus the checks that allauth leaves to TLS.

Invariants:
- an ID token counts only if one of the provider's published keys signed it (RS256 or ES256, never `none`, never HMAC),
  for this client, unexpired, and for this sign-in: it carries the nonce stored in this browser's session;
- the provider is the one that the operator set: metadata of another issuer are refused, wherever they came from;
- an identity is a subject at its issuer: the same subject at another issuer is another identity;
- claims come from the ID token; a missing address may come from userinfo, whose `sub` must equal the token's;
- the authorisation code is bound to this browser by PKCE and by the state, which is stored in the session.
"""

import hashlib
import hmac
import secrets
from typing import Any, Final

import jwt
from allauth.account.internal.decorators import login_not_required
from allauth.socialaccount.adapter import get_adapter
from allauth.socialaccount.models import SocialApp, SocialLogin, SocialToken
from allauth.socialaccount.providers.base import AuthProcess
from allauth.socialaccount.providers.oauth2.client import OAuth2Error
from allauth.socialaccount.providers.oauth2.views import OAuth2CallbackView, OAuth2LoginView
from allauth.socialaccount.providers.openid_connect.provider import OpenIDConnectProvider
from allauth.socialaccount.providers.openid_connect.views import OpenIDConnectOAuth2Adapter
from django.conf import settings
from django.db import transaction
from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase
from django.shortcuts import render
from requests import RequestException

from backend.accounts.oidc.asking import note_silence

ALGORITHMS: Final = ("RS256", "ES256")
_LEEWAY_S = 60  # clocks differ
_NONCE = "oidc_nonce"
_SILENT = "Your provider is unreachable. Try again later; if the problem persists, contact the operator of this site."


class VerifyingAdapter(OpenIDConnectOAuth2Adapter):  # type: ignore[misc]  # allauth ships no types
    def complete_login(self, request: HttpRequest, app: SocialApp, token: SocialToken, **kwargs: Any) -> SocialLogin:
        nonce = request.session.pop(_NONCE, "")
        claims = self.verified(str(kwargs["response"].get("id_token") or ""), client_id=app.client_id, nonce=nonce)
        if "email" not in claims:
            userinfo = self._fetch_user_info(token.token)
            if userinfo.get("sub") != claims["sub"]:
                raise OAuth2Error("userinfo is for another subject")
            claims |= {key: userinfo[key] for key in ("email", "email_verified") if key in userinfo}
        return self.get_provider().sociallogin_from_response(request, {"id_token": claims})

    def verified(self, id_token: str, *, client_id: str, nonce: str) -> dict[str, Any]:
        """The token's claims. Raises `OAuth2Error`, which allauth shows as a failed sign-in."""
        try:
            claims: dict[str, Any] = jwt.decode(
                id_token,
                self._signing_key(id_token),
                algorithms=list(ALGORITHMS),
                audience=client_id,
                issuer=self._issuer(),
                leeway=_LEEWAY_S,
                options={"require": ["iss", "sub", "aud", "exp", "iat"]},
            )
        except (jwt.PyJWTError, KeyError, ValueError, TypeError) as error:
            raise OAuth2Error("the ID token is not valid") from error
        if not nonce or not hmac.compare_digest(str(claims.get("nonce", "")), nonce):
            raise OAuth2Error("the ID token was made for another sign-in")
        if isinstance(claims["aud"], list) and len(claims["aud"]) > 1 and claims.get("azp") != client_id:
            raise OAuth2Error("the ID token was made for another client")
        return claims

    def _issuer(self) -> str:
        """The issuer as written in its metadata, if it is the configured one. Raises `ValueError`."""
        issuer = str(self.openid_config["issuer"])
        if issuer.rstrip("/") != settings.ENVIRONMENT.oidc_issuer:
            raise ValueError(f"the metadata are for {issuer}")
        return issuer

    def _signing_key(self, id_token: str) -> Any:
        header = jwt.get_unverified_header(id_token)
        with get_adapter().get_requests_session() as session:
            response = session.get(self.openid_config["jwks_uri"])
            response.raise_for_status()
            published = jwt.PyJWKSet.from_dict(response.json())
        matching = [key for key in published.keys if key.key_id == header.get("kid") and key.public_key_use != "enc"]
        if len(matching) != 1:
            raise ValueError("the provider does not publish this key")
        return matching[0]


class VerifyingProvider(OpenIDConnectProvider):  # type: ignore[misc]  # allauth ships no types
    oauth2_adapter_class = VerifyingAdapter

    @classmethod
    def get_package(cls) -> str:
        return __name__.rpartition(".")[0]

    def get_auth_params_from_request(self, request: HttpRequest, action: str) -> dict[str, Any]:
        """Ignores the URL's parameters, which allauth would pass on: a link could add requests of its own."""
        nonce = secrets.token_urlsafe(32)
        request.session[_NONCE] = nonce
        return {**self.get_auth_params(), "nonce": nonce}

    def get_scope_from_request(self, request: HttpRequest) -> list[str]:
        return list(self.get_scope())

    def extract_uid(self, data: dict[str, Any]) -> str:
        """A hash, since a subject may be longer than the column."""
        identity = f"{settings.ENVIRONMENT.oidc_issuer}\0{data['id_token']['sub']}"
        return hashlib.sha256(identity.encode()).hexdigest()

    def extract_email_addresses(self, data: dict[str, Any]) -> list[Any]:
        """`email_verified` counts only if it is the boolean true."""
        addresses: list[Any] = super().extract_email_addresses(data)
        verified = data["id_token"].get("email_verified") is True
        for address in addresses:
            address.email, address.verified = address.email.lower(), verified
        return addresses


@login_not_required  # type: ignore[untyped-decorator]  # allauth ships no types
def login(request: HttpRequest, provider_id: str) -> HttpResponseBase:
    """Only for signing in: allauth would also connect another identity to the signed-in user."""
    if request.GET.get("process", AuthProcess.LOGIN) != AuthProcess.LOGIN or "process" in request.POST:
        raise Http404
    return _view(OAuth2LoginView, request, provider_id)


@login_not_required  # type: ignore[untyped-decorator]  # allauth ships no types
@transaction.atomic
def callback(request: HttpRequest, provider_id: str) -> HttpResponseBase:
    return _view(OAuth2CallbackView, request, provider_id)


def _view(kind: type[Any], request: HttpRequest, provider_id: str) -> HttpResponseBase:
    try:
        response: HttpResponseBase = kind.adapter_view(VerifyingAdapter(request, provider_id))(request)
    except SocialApp.DoesNotExist:
        raise Http404 from None
    except RequestException as error:
        note_silence(error)
        response = render(request, "socialaccount/refused.html", {"why": _SILENT}, status=503)
    return response


provider_classes = [VerifyingProvider]
