"""Every event of a team that has webhooks waits for delivery, from the event's own transaction on, whichever code wrote it.
Teams without webhooks cost one look-up in a partial index.
"""

import backend.webhooks.models
import django.contrib.postgres.fields
import django.db.models.deletion
from django.db import migrations, models

NOTE_EVENTS = """
CREATE FUNCTION laminar_note_event() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO webhooks_pendingevent (event_id)
    SELECT NEW.id FROM jobs_job job
    WHERE job.id = NEW.job_id AND EXISTS (
        SELECT 1 FROM webhooks_webhookendpoint endpoint
        WHERE endpoint.team_id = job.team_id AND endpoint.disabled_at IS NULL
    );
    RETURN NULL;
END $$;
CREATE TRIGGER laminar_note_event AFTER INSERT ON jobs_jobevent
    FOR EACH ROW EXECUTE FUNCTION laminar_note_event();
"""


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('accounts', '0001_initial'),
        ('jobs', '0001_initial'),
    ]

    operations = [
        migrations.CreateModel(
            name='PendingEvent',
            fields=[
                ('event', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='+', serialize=False, to='jobs.jobevent')),
            ],
        ),
        migrations.CreateModel(
            name='SenderLease',
            fields=[
                ('slot', models.PositiveSmallIntegerField(primary_key=True, serialize=False)),
                ('held_until', models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name='WebhookEndpoint',
            fields=[
                ('id', models.CharField(default=backend.webhooks.models._endpoint_id, editable=False, max_length=32, primary_key=True, serialize=False)),
                ('url', models.CharField(max_length=1000)),
                ('description', models.CharField(blank=True, default='', max_length=200)),
                ('events', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=60), size=None)),
                ('secret', models.TextField()),
                ('previous_secret', models.TextField(blank=True, default='')),
                ('previous_until', models.DateTimeField(null=True)),
                ('version', models.PositiveIntegerField(default=1)),
                ('created_at', models.DateTimeField()),
                ('disabled_at', models.DateTimeField(null=True)),
                ('disabled_reason', models.CharField(blank=True, default='', max_length=200)),
                ('num_failures', models.PositiveIntegerField(default=0)),
                ('not_before', models.DateTimeField(null=True)),
                ('last_success_at', models.DateTimeField(null=True)),
                ('team', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='webhooks', to='accounts.team')),
            ],
        ),
        migrations.CreateModel(
            name='WebhookDelivery',
            fields=[
                ('id', models.CharField(default=backend.webhooks.models._delivery_id, editable=False, max_length=32, primary_key=True, serialize=False)),
                ('message_id', models.CharField(max_length=64)),
                ('type', models.CharField(max_length=60)),
                ('body', models.TextField()),
                ('state', models.CharField(choices=[('pending', 'Pending'), ('delivered', 'Delivered'), ('dead', 'Dead')], default='pending', max_length=10)),
                ('num_attempts', models.PositiveIntegerField(default=0)),
                ('due_at', models.DateTimeField(null=True)),
                ('attempts', models.JSONField(default=list)),
                ('created_at', models.DateTimeField()),
                ('finished_at', models.DateTimeField(null=True)),
                ('event', models.ForeignKey(null=True, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='jobs.jobevent')),
                ('endpoint', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='deliveries', to='webhooks.webhookendpoint')),
            ],
        ),
        migrations.AddIndex(
            model_name='webhookendpoint',
            index=models.Index(condition=models.Q(('disabled_at__isnull', True)), fields=['team'], name='live_webhooks_of_team'),
        ),
        migrations.AddIndex(
            model_name='webhookdelivery',
            index=models.Index(condition=models.Q(('state', 'pending')), fields=['due_at'], name='deliveries_due'),
        ),
        migrations.AddIndex(
            model_name='webhookdelivery',
            index=models.Index(fields=['endpoint', '-created_at', '-id'], name='deliveries_of_endpoint'),
        ),
        migrations.AddConstraint(
            model_name='webhookdelivery',
            constraint=models.UniqueConstraint(fields=('endpoint', 'event'), name='one_delivery_per_event'),
        ),
        migrations.AddConstraint(
            model_name='webhookdelivery',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('due_at__isnull', False), ('finished_at__isnull', True), ('state', 'pending')), models.Q(models.Q(('state', 'pending'), _negated=True), ('due_at__isnull', True), ('finished_at__isnull', False)), _connector='OR'), name='delivery_due_iff_pending'),
        ),
        migrations.RunSQL(NOTE_EVENTS, migrations.RunSQL.noop),
    ]
