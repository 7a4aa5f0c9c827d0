"""Changes that the database refuses from any client: buggy code, an admin page, or psql.

- a job's state moves only along `lifecycle.LEGAL_MOVES` (a test compares the two lists), and a terminal row never
  changes, except for the cursor that late news move;
- its spec, team, project and descent never change, its fence never falls, and no job is deleted;
- a change of state raises the row's version by one and has its event, identified by that version, at commit;
- the event log is append-only;
- a job holds devices if and only if its state is one that does, checked at commit from both tables: a trainer if it
  trains, its replicas if it only evaluates.

`jobs_generation` has one row, the generation of the installation, with a copy outside the database.
"""

import django.db.models.deletion
from django.db import migrations, models

JOB_GUARD = """
CREATE FUNCTION laminar_guard_job() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        RAISE EXCEPTION 'job %: jobs are never deleted', OLD.id USING ERRCODE = 'restrict_violation';
    END IF;
    IF NEW.id <> OLD.id OR NEW.spec <> OLD.spec OR NEW.team_id <> OLD.team_id OR NEW.project_id <> OLD.project_id
       OR NEW.start_from <> OLD.start_from OR NEW.parent_id IS DISTINCT FROM OLD.parent_id THEN
        RAISE EXCEPTION 'job %: id, spec, team, project and descent never change', OLD.id
            USING ERRCODE = 'restrict_violation';
    END IF;
    IF NEW.fence < OLD.fence THEN
        RAISE EXCEPTION 'job %: the fence never falls', OLD.id USING ERRCODE = 'restrict_violation';
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
    core text;
    may_hold boolean;
    holds boolean;
BEGIN
    SELECT state, CASE WHEN spec #>> '{training,steps}' = '0' THEN 'rollout' ELSE 'trainer' END
        INTO job_state, core FROM jobs_job WHERE id = the_job;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    may_hold := job_state IN ('starting', 'running', 'recovering', 'pausing', 'stopping');
    holds := EXISTS (
        SELECT 1 FROM pools_reservation WHERE job_id = the_job AND role = core AND released_at IS NULL
    );
    IF may_hold <> holds OR (NOT may_hold AND EXISTS (
        SELECT 1 FROM pools_reservation WHERE job_id = the_job AND released_at IS NULL
    )) THEN
        RAISE EXCEPTION 'job %: it is % and % devices', the_job, job_state,
            CASE WHEN holds THEN 'holds' ELSE 'lacks, or keeps without a ' || core || ', its' END
            USING ERRCODE = 'restrict_violation';
    END IF;
    IF core = 'rollout' AND EXISTS (
        SELECT 1 FROM pools_reservation WHERE job_id = the_job AND role = 'trainer' AND released_at IS NULL
    ) THEN
        RAISE EXCEPTION 'job %: it trains nothing and holds devices for a trainer', the_job
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
GENERATION = """
INSERT INTO jobs_generation (id, site, number, pulse, cluster, reason)
VALUES (1, replace(gen_random_uuid()::text, '-', ''), 0, 0, '', '')
"""
# Serves the ceiling of a key: each submission with such a key adds up what its jobs hold and have used.
JOBS_OF_A_KEY = "CREATE INDEX job_submitted_by ON jobs_jobevent (actor) WHERE type = 'submitted'"


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('accounts', '0001_initial'),
        ('jobs', '0001_initial'),
        ('pools', '0001_initial'),
    ]

    operations = [
        migrations.AddField(
            model_name='job',
            name='pool',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='jobs', to='pools.resourcepool'),
        ),
        migrations.AddField(
            model_name='job',
            name='project',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='jobs', to='accounts.project'),
        ),
        migrations.AddField(
            model_name='job',
            name='team',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='jobs', to='accounts.team'),
        ),
        migrations.AddField(
            model_name='controlrequest',
            name='job',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='requests', to='jobs.job'),
        ),
        migrations.AddField(
            model_name='jobattempt',
            name='job',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='attempts', to='jobs.job'),
        ),
        migrations.AddField(
            model_name='jobevent',
            name='job',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='events', to='jobs.job'),
        ),
        migrations.AddIndex(
            model_name='outboxmessage',
            index=models.Index(fields=['not_before'], name='outbox_due'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(fields=['team', '-created_at', '-id'], name='job_list'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(condition=models.Q(('state', 'queued')), fields=['pool', 'queued_at'], name='job_queue'),
        ),
        migrations.AddConstraint(
            model_name='job',
            constraint=models.CheckConstraint(condition=models.Q(('state__in', ['validating', 'queued', 'starting', 'running', 'recovering', 'pausing', 'paused', 'stopping', 'succeeded', 'failed', 'cancelled'])), name='job_state_known'),
        ),
        migrations.AddConstraint(
            model_name='job',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('finished_at__isnull', False), ('state__in', ('succeeded', 'failed', 'cancelled'))), models.Q(models.Q(('state__in', ('succeeded', 'failed', 'cancelled')), _negated=True), ('finished_at__isnull', True)), _connector='OR'), name='job_finished_iff_terminal'),
        ),
        migrations.AddConstraint(
            model_name='controlrequest',
            constraint=models.UniqueConstraint(condition=models.Q(('acknowledged_at__isnull', True)), fields=('job', 'kind'), name='one_open_request_per_kind'),
        ),
        migrations.AddConstraint(
            model_name='controlrequest',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('kind__in', ['cancel', 'pause']), ('replicas__isnull', True)), models.Q(('kind', 'resize'), ('replicas__gte', 1), ('replicas__isnull', False)), _connector='OR'), name='request_can_be_obeyed'),
        ),
        migrations.AddConstraint(
            model_name='jobattempt',
            constraint=models.UniqueConstraint(fields=('job', 'n'), name='one_attempt_per_number'),
        ),
        migrations.AddConstraint(
            model_name='jobattempt',
            constraint=models.UniqueConstraint(condition=models.Q(('ended_at__isnull', True)), fields=('job',), name='one_live_attempt'),
        ),
        migrations.AddIndex(
            model_name='jobevent',
            index=models.Index(fields=['job', 'cursor'], name='event_pull'),
        ),
        migrations.AddConstraint(
            model_name='jobevent',
            constraint=models.UniqueConstraint(fields=('job', 'seq'), name='one_event_per_seq'),
        ),
        migrations.AddConstraint(
            model_name='jobevent',
            constraint=models.UniqueConstraint(fields=('job', 'job_version'), name='one_event_per_change_of_state'),
        ),
        migrations.RunSQL(JOB_GUARD, migrations.RunSQL.noop),
        migrations.RunSQL(EVENT_GUARD, migrations.RunSQL.noop),
        migrations.RunSQL(NO_CHANGE_WITHOUT_EVENT, migrations.RunSQL.noop),
        migrations.RunSQL(HOLDS_IFF, migrations.RunSQL.noop),
        migrations.RunSQL(GENERATION, migrations.RunSQL.noop),
        migrations.RunSQL(JOBS_OF_A_KEY, migrations.RunSQL.noop),
    ]
