"""The app's name in Django; it has no tables."""

from django.apps import AppConfig


class OutsideConfig(AppConfig):
    name = "backend.outside"
