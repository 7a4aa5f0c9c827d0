"""Buckets and times need not survive a crash of Postgres, and without a write-ahead log nobody waits for a disk.

They do survive an orderly restart. fillfactor keeps room on each page: every use of a bucket then updates it in place.
"""

from django.db import migrations, models

# Open event streams of a key that was revoked end at once, whoever revoked it and however.
TELL_OF_REVOKED_KEYS = """
CREATE FUNCTION laminar_tell_key() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('laminar_auth', 'key ' || OLD.id);
    RETURN NULL;
END $$;
CREATE TRIGGER laminar_tell_key AFTER DELETE OR UPDATE OF revoked_at, expires_at, scopes ON accounts_apikey
    FOR EACH ROW EXECUTE FUNCTION laminar_tell_key();
"""


class Migration(migrations.Migration):
    dependencies = [("api", "0001_initial"), ("accounts", "0001_initial")]

    operations = [
        migrations.CreateModel(
            name="BackgroundTime",
            fields=[
                ("name", models.CharField(max_length=80, primary_key=True, serialize=False)),
                ("runs", models.PositiveBigIntegerField()),
                ("failures", models.PositiveBigIntegerField()),
                ("seconds", models.FloatField()),
                ("longest_s", models.FloatField()),
                ("last_at", models.DateTimeField()),
            ],
        ),
        migrations.RunSQL(
            "ALTER TABLE api_backgroundtime SET UNLOGGED;", "ALTER TABLE api_backgroundtime SET LOGGED;"
        ),
        migrations.RunSQL(
            "ALTER TABLE api_ratebucket SET UNLOGGED; ALTER TABLE api_ratebucket SET (fillfactor = 50);",
            "ALTER TABLE api_ratebucket RESET (fillfactor); ALTER TABLE api_ratebucket SET LOGGED;",
        ),
        migrations.RunSQL(
            TELL_OF_REVOKED_KEYS, "DROP TRIGGER laminar_tell_key ON accounts_apikey; DROP FUNCTION laminar_tell_key();"
        ),
    ]
