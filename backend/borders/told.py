"""The column of a message that tenants read: whatever wrote it, no path of a host and no line of ours is in it.

Invariant: what is stored went through `for_tenants`, so that no writer has to think of it and no reader can forget.
"""

from typing import TYPE_CHECKING, Any

from django.db import models

from engine.spec.for_tenants import for_tenants

if TYPE_CHECKING:
    _Text = models.TextField[str, str]
else:
    _Text = models.TextField  # Django's takes no types when it runs


class ToldField(_Text):
    def get_prep_value(self, value: Any) -> Any:
        prepared = super().get_prep_value(value)
        return for_tenants(prepared) if isinstance(prepared, str) else prepared

    def deconstruct(self) -> Any:
        """For migrations it is the text that it is in the database."""
        name, _, arguments, keywords = super().deconstruct()
        return name, "django.db.models.TextField", arguments, keywords
