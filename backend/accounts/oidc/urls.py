"""Addresses of OpenID sign-in: where its button leads, and where the provider sends people back."""

from django.urls import path

from backend.accounts.oidc.provider import callback, login

urlpatterns = [
    path("oidc/<str:provider_id>/login/", login, name="openid_connect_login"),
    path("oidc/<str:provider_id>/login/callback/", callback, name="openid_connect_callback"),
]
