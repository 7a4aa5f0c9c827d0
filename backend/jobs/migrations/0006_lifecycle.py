"""Columns of pause, retry and evidence, and what the database refuses since.

- a terminal row changes no more, but for the cursor under which late news are pulled;
- a change of state raises the row's version by one and has its event, told apart by that version, at commit;
- a job holds devices if and only if its state is one that does: checked at commit, from both tables.
"""

import django.contrib.postgres.fields
from django.db import migrations, models

JOB_GUARD = """
CREATE OR REPLACE FUNCTION laminar_guard_job() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        RAISE EXCEPTION 'job %: jobs are never deleted', OLD.id USING ERRCODE = 'restrict_violation';
    END IF;
    IF NEW.id <> OLD.id OR NEW.spec <> OLD.spec OR NEW.team_id <> OLD.team_id OR NEW.project_id <> OLD.project_id
       OR NEW.start_from <> OLD.start_from OR NEW.parent_id IS DISTINCT FROM OLD.parent_id THEN
        RAISE EXCEPTION 'job %: id, spec, team, project and descent never change', OLD.id
            USING ERRCODE = 'restrict_violation';
    END IF;
    IF NEW.epoch < OLD.epoch THEN
        RAISE EXCEPTION 'job %: the epoch never falls', OLD.id USING ERRCODE = 'restrict_violation';
    END IF;
    IF OLD.state IN ('succeeded', 'failed', 'cancelled')
       AND to_jsonb(NEW) - 'cursor' <> to_jsonb(OLD) - 'cursor' THEN
        RAISE EXCEPTION 'job %: it has %, and that is final', OLD.id, OLD.state USING ERRCODE = 'restrict_violation';
    END IF;
    IF NEW.state <> OLD.state AND NEW.version <> OLD.version + 1 THEN
        RAISE EXCEPTION 'job %: a change of state raises the version by one', OLD.id
            USING ERRCODE = 'restrict_violation';
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
"""

NO_CHANGE_WITHOUT_EVENT = """
CREATE FUNCTION laminar_state_has_its_event() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (
        SELECT 1 FROM jobs_jobevent
        WHERE job_id = NEW.id AND job_version = NEW.version AND from_state = OLD.state AND to_state = NEW.state
    ) THEN
        RAISE EXCEPTION 'job %: % became % without an event', NEW.id, OLD.state, NEW.state
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER laminar_state_has_its_event AFTER UPDATE ON jobs_job
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (OLD.state <> NEW.state)
    EXECUTE FUNCTION laminar_state_has_its_event();
"""

HOLDS_IFF = """
CREATE FUNCTION laminar_check_holding(the_job text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    job_state text;
    may_hold boolean;
    holds boolean;
BEGIN
    SELECT state INTO job_state FROM jobs_job WHERE id = the_job;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    may_hold := job_state IN ('starting', 'running', 'recovering', 'pausing', 'stopping');
    holds := EXISTS (
        SELECT 1 FROM pools_reservation WHERE job_id = the_job AND role = 'trainer' AND released_at IS NULL
    );
    IF may_hold <> holds OR (NOT may_hold AND EXISTS (
        SELECT 1 FROM pools_reservation WHERE job_id = the_job AND released_at IS NULL
    )) THEN
        RAISE EXCEPTION 'job %: it is % and % devices', the_job, job_state,
            CASE WHEN holds THEN 'holds' ELSE 'lacks, or keeps without a trainer, its' END
            USING ERRCODE = 'restrict_violation';
    END IF;
END $$;
CREATE FUNCTION laminar_job_holds_iff() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM laminar_check_holding(NEW.id);
    RETURN NULL;
END $$;
CREATE FUNCTION laminar_reservation_held_iff() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM laminar_check_holding(COALESCE(NEW.job_id, OLD.job_id));
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER laminar_job_holds_iff AFTER UPDATE ON jobs_job
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (OLD.state <> NEW.state)
    EXECUTE FUNCTION laminar_job_holds_iff();
CREATE CONSTRAINT TRIGGER laminar_new_job_holds_iff AFTER INSERT ON jobs_job
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION laminar_job_holds_iff();
CREATE CONSTRAINT TRIGGER laminar_reservation_held_iff AFTER INSERT OR UPDATE OR DELETE ON pools_reservation
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION laminar_reservation_held_iff();
"""

DROP = """
DROP TRIGGER laminar_reservation_held_iff ON pools_reservation;
DROP TRIGGER laminar_new_job_holds_iff ON jobs_job;
DROP TRIGGER laminar_job_holds_iff ON jobs_job;
DROP TRIGGER laminar_state_has_its_event ON jobs_job;
DROP FUNCTION laminar_reservation_held_iff();
DROP FUNCTION laminar_job_holds_iff();
DROP FUNCTION laminar_check_holding(text);
DROP FUNCTION laminar_state_has_its_event();
"""


class Migration(migrations.Migration):
    dependencies = [("jobs", "0005_platform"), ("pools", "0001_initial")]

    operations = [
        migrations.AddField(
            model_name="job",
            name="tags",
            field=django.contrib.postgres.fields.ArrayField(
                base_field=models.CharField(max_length=40), default=list, size=None
            ),
        ),
        migrations.AddField(
            model_name="job", name="num_validations", field=models.PositiveSmallIntegerField(default=0)
        ),
        migrations.AddField(
            model_name="jobattempt", name="resume_step", field=models.PositiveIntegerField(default=0)
        ),
        migrations.AddField(
            model_name="jobattempt",
            name="failure_class",
            field=models.CharField(blank=True, default="", max_length=20),
        ),
        migrations.AddField(model_name="jobattempt", name="evidence", field=models.JSONField(default=dict)),
        migrations.AddField(
            model_name="jobevent", name="job_version", field=models.PositiveIntegerField(null=True)
        ),
        migrations.AddConstraint(
            model_name="jobevent",
            constraint=models.UniqueConstraint(fields=("job", "job_version"), name="one_event_per_change_of_state"),
        ),
        migrations.RunSQL(JOB_GUARD, migrations.RunSQL.noop),
        migrations.RunSQL(NO_CHANGE_WITHOUT_EVENT + HOLDS_IFF, DROP),
    ]
