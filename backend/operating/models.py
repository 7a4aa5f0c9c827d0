"""The last examination of the site, for the status page: one row a kind, whichever web process looked."""

from django.db import models


class Examination(models.Model):
    name = models.CharField(primary_key=True, max_length=20)
    began_at = models.DateTimeField(null=True)
    """Later than `ended_at`: somebody is looking, or died over it."""
    ended_at = models.DateTimeField(null=True)
    parts = models.JSONField(default=list)
