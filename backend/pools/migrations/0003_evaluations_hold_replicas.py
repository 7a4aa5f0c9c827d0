"""A job that trains nothing holds its replicas and no trainer: then theirs is the share that elastic ones need.

What a job trains is read off its spec, which never changes.
"""

from django.db import migrations

ELASTIC_HAS_CORE = """
CREATE FUNCTION laminar_elastic_has_core() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    core text;
BEGIN
    SELECT CASE WHEN spec #>> '{training,steps}' = '0' THEN 'rollout' ELSE 'trainer' END INTO core
        FROM jobs_job WHERE id = NEW.job_id;
    IF EXISTS (SELECT 1 FROM pools_reservation
               WHERE job_id = NEW.job_id AND role = 'elastic' AND released_at IS NULL)
       AND NOT EXISTS (SELECT 1 FROM pools_reservation
                       WHERE job_id = NEW.job_id AND role = core AND released_at IS NULL) THEN
        RAISE EXCEPTION 'job %: elastic replicas without a %', NEW.job_id, core USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;
DROP TRIGGER laminar_elastic_has_trainer ON pools_reservation;
DROP FUNCTION laminar_elastic_has_trainer();
CREATE CONSTRAINT TRIGGER laminar_elastic_has_core AFTER INSERT OR UPDATE ON pools_reservation
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION laminar_elastic_has_core();
"""

ELASTIC_HAS_TRAINER = """
CREATE FUNCTION laminar_elastic_has_trainer() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM pools_reservation
               WHERE job_id = NEW.job_id AND role = 'elastic' AND released_at IS NULL)
       AND NOT EXISTS (SELECT 1 FROM pools_reservation
                       WHERE job_id = NEW.job_id AND role = 'trainer' AND released_at IS NULL) THEN
        RAISE EXCEPTION 'job %: elastic replicas without a trainer', NEW.job_id USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;
DROP TRIGGER laminar_elastic_has_core ON pools_reservation;
DROP FUNCTION laminar_elastic_has_core();
CREATE CONSTRAINT TRIGGER laminar_elastic_has_trainer AFTER INSERT OR UPDATE ON pools_reservation
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.role IN ('elastic', 'trainer'))
    EXECUTE FUNCTION laminar_elastic_has_trainer();
"""


class Migration(migrations.Migration):
    dependencies = [("jobs", "0006_lifecycle"), ("pools", "0002_lending")]

    operations = [migrations.RunSQL(ELASTIC_HAS_CORE, ELASTIC_HAS_TRAINER)]
