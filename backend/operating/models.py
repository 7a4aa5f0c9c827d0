"""The last examination of the site, for the status page: one row per kind, shared by all web processes."""

from django.db import models


class Examination(models.Model):
    name = models.CharField(primary_key=True, max_length=20)
    began_at = models.DateTimeField(null=True)
    """Later than `ended_at`: an examination is running, or was interrupted."""
    ended_at = models.DateTimeField(null=True)
    parts = models.JSONField(default=list)
