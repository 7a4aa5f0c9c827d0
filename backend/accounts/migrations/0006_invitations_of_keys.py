"""An invitation knows the key that made it, and dies with it. Those that are open were made before that was kept."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("accounts", "0005_signed_in")]

    operations = [
        migrations.AddField(
            "invitation",
            "made_with",
            models.ForeignKey(
                null=True, on_delete=django.db.models.deletion.SET_NULL, related_name="+", to="accounts.apikey"
            ),
        ),
    ]
