"""All URLs below /accounts/, including the listed ones of allauth and no others.

Invariants:
- a URL that a new allauth release or setting would add is not served until it is listed here;
- pages that could attach an unverified address, or another identity, to an account are not listed.
"""

from allauth.account import views as account
from allauth.socialaccount import views as social
from django.urls import include, path

from backend.accounts.oidc.provider import callback, login
from backend.pages.account import address_views, reset_views, session_views

urlpatterns = [
    path("login/", account.login, name="account_login"),
    path("logout/", account.logout, name="account_logout"),
    path("inactive/", account.account_inactive, name="account_inactive"),
    path("signup/", account.signup, name="account_signup"),
    path("confirm-email/", account.email_verification_sent, name="account_email_verification_sent"),
    path("confirm-email/<token:key>/", account.confirm_email, name="account_confirm_email"),
    path("email/", address_views.address, name="account_email"),
    path("email/confirm/<token:token>/", address_views.confirm, name="account_confirm_address"),
    path("email/cancel/<token:token>/", address_views.cancel, name="account_cancel_address"),
    path("sessions/", session_views.sessions, name="account_sessions"),
    path("reauthenticate/", account.reauthenticate, name="account_reauthenticate"),
    path("password/change/", account.password_change, name="account_change_password"),
    path("password/set/", account.password_set, name="account_set_password"),
    path("password/reset/", reset_views.forgotten, name="account_reset_password"),
    path("password/reset/<token:token>/", reset_views.reset, name="account_reset"),
    path("2fa/", include("allauth.mfa.urls")),
    path("3rdparty/login/cancelled/", social.login_cancelled, name="socialaccount_login_cancelled"),
    path("3rdparty/login/error/", social.login_error, name="socialaccount_login_error"),
    path("oidc/<str:provider_id>/login/", login, name="openid_connect_login"),
    path("oidc/<str:provider_id>/login/callback/", callback, name="openid_connect_callback"),
]
