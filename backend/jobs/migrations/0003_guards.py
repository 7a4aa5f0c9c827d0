"""What the database refuses whoever asks: code with a bug, an admin page, or somebody with psql.

- a job's state moves only as `lifecycle.LEGAL_MOVES` says (a test holds the two lists together), so a terminal state
  stays; its spec, team and project never change, its epoch never falls, and no job is deleted;
- the event log is append-only.
"""

from django.db import migrations

JOB_GUARD = """
CREATE FUNCTION laminar_guard_job() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        RAISE EXCEPTION 'job %: jobs are never deleted', OLD.id USING ERRCODE = 'restrict_violation';
    END IF;
    IF NEW.id <> OLD.id OR NEW.spec <> OLD.spec OR NEW.team_id <> OLD.team_id OR NEW.project_id <> OLD.project_id THEN
        RAISE EXCEPTION 'job %: id, spec, team and project never change', OLD.id USING ERRCODE = 'restrict_violation';
    END IF;
    IF NEW.epoch < OLD.epoch THEN
        RAISE EXCEPTION 'job %: the epoch never falls', OLD.id USING ERRCODE = 'restrict_violation';
    END IF;
    IF NEW.state <> OLD.state AND (OLD.state || '>' || NEW.state) NOT IN (
        'validating>queued', 'validating>failed', 'validating>cancelled',
        'queued>starting', 'queued>cancelled', 'queued>failed',
        'starting>running', 'starting>recovering', 'starting>queued', 'starting>pausing', 'starting>stopping',
        'starting>failed',
        'running>recovering', 'running>pausing', 'running>stopping',
        'recovering>starting', 'recovering>running', 'recovering>queued', 'recovering>pausing', 'recovering>stopping',
        'pausing>paused', 'pausing>queued', 'pausing>stopping',
        'paused>queued', 'paused>cancelled',
        'stopping>succeeded', 'stopping>failed', 'stopping>cancelled'
    ) THEN
        RAISE EXCEPTION 'job %: % cannot become %', OLD.id, OLD.state, NEW.state USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER laminar_guard_job BEFORE UPDATE OR DELETE ON jobs_job
    FOR EACH ROW EXECUTE FUNCTION laminar_guard_job();
"""

EVENT_GUARD = """
CREATE FUNCTION laminar_guard_event() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'job events are append-only: % refused', TG_OP USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER laminar_guard_event BEFORE UPDATE OR DELETE ON jobs_jobevent
    FOR EACH ROW EXECUTE FUNCTION laminar_guard_event();
CREATE TRIGGER laminar_guard_event_truncate BEFORE TRUNCATE ON jobs_jobevent
    FOR EACH STATEMENT EXECUTE FUNCTION laminar_guard_event();
"""


class Migration(migrations.Migration):
    dependencies = [("jobs", "0002_initial")]

    operations = [
        migrations.RunSQL(
            JOB_GUARD, "DROP TRIGGER laminar_guard_job ON jobs_job; DROP FUNCTION laminar_guard_job();"
        ),
        migrations.RunSQL(
            EVENT_GUARD,
            "DROP TRIGGER laminar_guard_event ON jobs_jobevent;"
            "DROP TRIGGER laminar_guard_event_truncate ON jobs_jobevent;"
            "DROP FUNCTION laminar_guard_event();",
        ),
    ]
