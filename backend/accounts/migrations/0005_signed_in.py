"""The browsers in which people are signed in. Sessions that exist are noted with their next request."""

import backend.accounts.models
import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0004_proved_addresses"),
        ("sessions", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="SignedIn",
            fields=[
                (
                    "session",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="signed_in",
                        serialize=False,
                        to="sessions.session",
                    ),
                ),
                (
                    "public_id",
                    models.CharField(default=backend.accounts.models._signed_in_id, max_length=32, unique=True),
                ),
                ("began_at", models.DateTimeField()),
                ("seen_at", models.DateTimeField()),
                ("ip", models.CharField(blank=True, max_length=45)),
                ("user_agent", models.CharField(blank=True, max_length=200)),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="signed_in",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
        ),
    ]
