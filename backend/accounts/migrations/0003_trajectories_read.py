"""Keys may read trajectories by the word that routes and pages use."""

from django.db import migrations

RENAME = "UPDATE accounts_apikey SET scopes = array_replace(scopes, '{}', '{}') WHERE '{}' = ANY(scopes)"
FORMER, PRESENT = "rollouts:read", "trajectories:read"


class Migration(migrations.Migration):
    dependencies = [("accounts", "0002_tenancy")]

    operations = [
        migrations.RunSQL(RENAME.format(FORMER, PRESENT, FORMER), RENAME.format(PRESENT, FORMER, PRESENT)),
    ]
