"""What the database refuses about capacity, quotas and reservations.

Each check locks the pool's row first, as the scheduler does. Any other writer (a bug, an admin page, psql) takes turns
with it, so two writers cannot both see the room that only one of them may have.

A job that only evaluates holds replicas and no trainer: its elastic replicas then need those. `spec` never changes.
"""

from django.db import migrations

WITHIN_LIMITS = """
CREATE FUNCTION laminar_check_reservation() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    most integer;
    quota record;
    held bigint;
    firm bigint;
BEGIN
    SELECT capacity INTO most FROM pools_resourcepool WHERE id = NEW.pool_id FOR NO KEY UPDATE;
    SELECT COALESCE(SUM(devices), 0) INTO held FROM pools_reservation
        WHERE pool_id = NEW.pool_id AND released_at IS NULL;
    IF held > most THEN
        RAISE EXCEPTION 'pool %: % devices held, it has %', NEW.pool_id, held, most USING ERRCODE = 'check_violation';
    END IF;
    SELECT nominal, borrow_limit INTO quota FROM pools_teamquota WHERE pool_id = NEW.pool_id AND team_id = NEW.team_id;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'pool %: team % has no quota', NEW.pool_id, NEW.team_id USING ERRCODE = 'check_violation';
    END IF;
    SELECT COALESCE(SUM(r.devices), 0),
           COALESCE(SUM(r.devices) FILTER (WHERE r.role <> 'elastic' AND NOT j.preemptible), 0)
        INTO held, firm
        FROM pools_reservation r JOIN jobs_job j ON j.id = r.job_id
        WHERE r.pool_id = NEW.pool_id AND r.team_id = NEW.team_id AND r.released_at IS NULL;
    IF held > quota.nominal + quota.borrow_limit THEN  -- a null limit is no limit
        RAISE EXCEPTION 'pool %: team % holds %, more than its ceiling', NEW.pool_id, NEW.team_id, held
            USING ERRCODE = 'check_violation';
    END IF;
    IF firm > quota.nominal AND NEW.role <> 'elastic'
       AND NOT (SELECT preemptible FROM jobs_job WHERE id = NEW.job_id) THEN
        RAISE EXCEPTION 'pool %: team % holds % that nobody may take back, more than its nominal %',
            NEW.pool_id, NEW.team_id, firm, quota.nominal USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER laminar_check_reservation AFTER INSERT OR UPDATE OF devices, pool_id, team_id, role, released_at
    ON pools_reservation
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.released_at IS NULL AND NEW.reclaimed_at IS NULL)
    EXECUTE FUNCTION laminar_check_reservation();

"""
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
CREATE CONSTRAINT TRIGGER laminar_elastic_has_core AFTER INSERT OR UPDATE ON pools_reservation
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION laminar_elastic_has_core();
"""
NOMINAL_FITS = """
CREATE FUNCTION laminar_check_nominal(the_pool text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    most integer;
    promised bigint;
BEGIN
    SELECT capacity INTO most FROM pools_resourcepool WHERE id = the_pool FOR NO KEY UPDATE;
    SELECT COALESCE(SUM(nominal), 0) INTO promised FROM pools_teamquota WHERE pool_id = the_pool;
    IF promised > most THEN
        RAISE EXCEPTION 'pool %: % devices promised, it has %', the_pool, promised, most
            USING ERRCODE = 'check_violation';
    END IF;
END $$;
CREATE FUNCTION laminar_quota_fits() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM laminar_check_nominal(NEW.pool_id);
    RETURN NULL;
END $$;
CREATE FUNCTION laminar_capacity_fits() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM laminar_check_nominal(NEW.id);
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER laminar_quota_fits AFTER INSERT OR UPDATE ON pools_teamquota
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION laminar_quota_fits();
CREATE CONSTRAINT TRIGGER laminar_capacity_fits AFTER UPDATE ON pools_resourcepool
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.capacity < OLD.capacity)
    EXECUTE FUNCTION laminar_capacity_fits();
"""


class Migration(migrations.Migration):
    dependencies = [("pools", "0001_initial"), ("jobs", "0002_initial")]

    operations = [
        migrations.RunSQL(WITHIN_LIMITS, migrations.RunSQL.noop),
        migrations.RunSQL(ELASTIC_HAS_CORE, migrations.RunSQL.noop),
        migrations.RunSQL(NOMINAL_FITS, migrations.RunSQL.noop),
    ]
