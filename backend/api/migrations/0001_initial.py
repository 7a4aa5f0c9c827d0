"""Rate limits and times of background tasks are kept in unlogged tables: they may be lost in a crash of Postgres, and no
request waits for a disk. They survive an orderly restart. The fillfactor leaves room on each page, so that every use of
a bucket updates its row in place.
"""

import django.db.models.deletion
from django.db import migrations, models

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

    initial = True

    dependencies = [
        ('accounts', '0001_initial'),
    ]

    operations = [
        migrations.CreateModel(
            name='BackgroundTime',
            fields=[
                ('name', models.CharField(max_length=80, primary_key=True, serialize=False)),
                ('runs', models.PositiveBigIntegerField()),
                ('failures', models.PositiveBigIntegerField()),
                ('seconds', models.FloatField()),
                ('longest_s', models.FloatField()),
                ('last_at', models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name='RateBucket',
            fields=[
                ('name', models.CharField(max_length=120, primary_key=True, serialize=False)),
                ('full_at', models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name='IdempotencyKey',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('key', models.CharField(max_length=255)),
                ('method', models.CharField(max_length=10)),
                ('path', models.CharField(max_length=500)),
                ('body_sha256', models.CharField(max_length=64)),
                ('status', models.PositiveSmallIntegerField(null=True)),
                ('response', models.JSONField(null=True)),
                ('location', models.CharField(blank=True, default='', max_length=500)),
                ('created_at', models.DateTimeField()),
                ('expires_at', models.DateTimeField()),
                ('team', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='accounts.team')),
            ],
            options={
                'indexes': [models.Index(fields=['expires_at'], name='idempotency_expiry')],
                'constraints': [models.UniqueConstraint(fields=('team', 'key'), name='one_answer_per_idempotency_key')],
            },
        ),
        migrations.RunSQL(BUCKETS, migrations.RunSQL.noop),
        migrations.RunSQL(TIMES, migrations.RunSQL.noop),
        migrations.RunSQL(NOTIFY_REVOKED_KEYS, migrations.RunSQL.noop),
    ]
