"""Rate limits and times of background tasks are kept in unlogged tables: they may be lost in a crash of Postgres, and no
request waits for a disk. They survive an orderly restart. The fillfactor leaves room on each page, so that every use of
a bucket updates its row in place.
"""

from django.db import migrations

BUCKETS = "ALTER TABLE api_ratebucket SET UNLOGGED; ALTER TABLE api_ratebucket SET (fillfactor = 50)"
TIMES = "ALTER TABLE api_backgroundtime SET UNLOGGED"
# Event streams of a revoked key end at once, however the key was revoked.
NOTIFY_REVOKED_KEYS = """
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
        migrations.RunSQL(BUCKETS, migrations.RunSQL.noop),
        migrations.RunSQL(TIMES, migrations.RunSQL.noop),
        migrations.RunSQL(NOTIFY_REVOKED_KEYS, migrations.RunSQL.noop),
    ]
