"""The column type of messages for tenants: it strips host paths and internal lines, from any writer.

Invariant: every stored value went through `for_tenants`, so neither writers nor readers have to call it.
"""

from typing import TYPE_CHECKING, Any

from django.db import models

from engine.spec.for_tenants import for_tenants

if TYPE_CHECKING:
    _Text = models.TextField[str, str]
else:
    _Text = models.TextField  # not generic at run time


class TenantTextField(_Text):
    def get_prep_value(self, value: Any) -> Any:
        prepared = super().get_prep_value(value)
        return for_tenants(prepared) if isinstance(prepared, str) else prepared

    def deconstruct(self) -> Any:
        """In migrations it is a plain TextField, as in the database."""
        name, _, arguments, keywords = super().deconstruct()
        return name, "django.db.models.TextField", arguments, keywords
