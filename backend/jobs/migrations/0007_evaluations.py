"""How far an evaluation is, and what it holds: its replicas, never a trainer. Whatever trains holds a trainer, as before."""

from django.db import migrations, models

CHECK_HOLDING = """
CREATE OR REPLACE FUNCTION laminar_check_holding(the_job text) RETURNS void LANGUAGE plpgsql AS $$
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
"""

CHECK_HOLDING_BEFORE = """
CREATE OR REPLACE FUNCTION laminar_check_holding(the_job text) RETURNS void LANGUAGE plpgsql AS $$
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
"""


class Migration(migrations.Migration):
    dependencies = [("jobs", "0006_lifecycle"), ("pools", "0003_evaluations_hold_replicas")]

    operations = [
        migrations.AddField(model_name="job", name="answered", field=models.PositiveIntegerField(default=0)),
        migrations.RunSQL(CHECK_HOLDING, CHECK_HOLDING_BEFORE),
    ]
