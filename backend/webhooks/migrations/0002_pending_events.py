"""Every event of a team that has webhooks waits for delivery, from the event's own transaction on, whichever code wrote it.
Teams without webhooks cost one look-up in a partial index.
"""

from django.db import migrations

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
    dependencies = [("webhooks", "0001_initial"), ("jobs", "0002_initial")]

    operations = [
        migrations.RunSQL(NOTE_EVENTS, migrations.RunSQL.noop),
    ]
