"""Borrowing and lending, elastic replicas, claims, budgets, and what the database refuses about them.

Each check locks the pool's row first, as the scheduler does: whoever writes beside it (a bug, an admin page, psql)
takes turns with it, so two writers cannot each see the room that only one of them may have.
"""

import django.db.models.deletion
from django.db import migrations, models

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
CREATE CONSTRAINT TRIGGER laminar_elastic_has_trainer AFTER INSERT OR UPDATE ON pools_reservation
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.role IN ('elastic', 'trainer'))
    EXECUTE FUNCTION laminar_elastic_has_trainer();
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

NO_LIMITS = """
DROP TRIGGER laminar_check_reservation ON pools_reservation;
DROP TRIGGER laminar_elastic_has_trainer ON pools_reservation;
DROP FUNCTION laminar_check_reservation();
DROP FUNCTION laminar_elastic_has_trainer();
"""
NO_FIT = """
DROP TRIGGER laminar_quota_fits ON pools_teamquota;
DROP TRIGGER laminar_capacity_fits ON pools_resourcepool;
DROP FUNCTION laminar_quota_fits();
DROP FUNCTION laminar_capacity_fits();
DROP FUNCTION laminar_check_nominal(text);
"""


class Migration(migrations.Migration):
    dependencies = [("jobs", "0005_platform"), ("pools", "0001_initial")]

    operations = [
        migrations.CreateModel(
            name='Budget',
            fields=[
                ('team', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='budget', serialize=False, to='accounts.team')),
                ('period', models.CharField(choices=[('month', 'Month')], default='month', max_length=10)),
                ('gpu_seconds', models.PositiveBigIntegerField()),
                ('version', models.PositiveIntegerField(default=1, editable=False)),
            ],
        ),
        migrations.CreateModel(
            name='Claim',
            fields=[
                ('job', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='claim', serialize=False, to='jobs.job')),
                ('devices', models.PositiveIntegerField()),
                ('created_at', models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name='UsageDecay',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('gpu_seconds', models.FloatField()),
                ('as_of', models.DateTimeField()),
            ],
        ),
        migrations.RemoveConstraint(
            model_name='reservation',
            name='one_live_reservation_per_role',
        ),
        migrations.AddField(
            model_name='reservation',
            name='borrowed',
            field=models.PositiveIntegerField(default=0),
        ),
        migrations.AddField(
            model_name='reservation',
            name='reclaimed_at',
            field=models.DateTimeField(null=True),
        ),
        migrations.AddField(
            model_name='reservation',
            name='slot',
            field=models.PositiveIntegerField(default=0),
        ),
        migrations.AddField(
            model_name='resourcepool',
            name='is_open',
            field=models.BooleanField(default=True),
        ),
        migrations.AddField(
            model_name='resourcepool',
            name='version',
            field=models.PositiveIntegerField(default=1, editable=False),
        ),
        migrations.AddField(
            model_name='teamquota',
            name='borrow_limit',
            field=models.PositiveIntegerField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name='teamquota',
            name='lend_limit',
            field=models.PositiveIntegerField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name='teamquota',
            name='weight',
            field=models.FloatField(default=1.0),
        ),
        migrations.AlterField(
            model_name='reservation',
            name='role',
            field=models.CharField(choices=[('trainer', 'Trainer'), ('rollout', 'Rollout'), ('elastic', 'Elastic')], max_length=10),
        ),
        migrations.AddIndex(
            model_name='reservation',
            index=models.Index(fields=['released_at'], name='reservations_by_end'),
        ),
        migrations.AddConstraint(
            model_name='reservation',
            constraint=models.UniqueConstraint(condition=models.Q(('released_at__isnull', True)), fields=('job', 'role', 'slot'), name='one_live_reservation_per_slot'),
        ),
        migrations.AddConstraint(
            model_name='reservation',
            constraint=models.CheckConstraint(condition=models.Q(('borrowed__lte', models.F('devices'))), name='reservation_borrows_what_it_holds'),
        ),
        migrations.AddConstraint(
            model_name='reservation',
            constraint=models.CheckConstraint(condition=models.Q(('role', 'elastic'), ('slot', 0), _connector='OR'), name='only_elastic_has_slots'),
        ),
        migrations.AddConstraint(
            model_name='reservation',
            constraint=models.CheckConstraint(condition=models.Q(('role', 'elastic'), ('reclaimed_at__isnull', True), _connector='OR'), name='only_elastic_is_reclaimed'),
        ),
        migrations.AddConstraint(
            model_name='teamquota',
            constraint=models.CheckConstraint(condition=models.Q(('weight__gt', 0)), name='quota_weight_is_positive'),
        ),
        migrations.AddField(
            model_name='claim',
            name='pool',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='claims', to='pools.resourcepool'),
        ),
        migrations.AddField(
            model_name='usagedecay',
            name='pool',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='pools.resourcepool'),
        ),
        migrations.AddField(
            model_name='usagedecay',
            name='team',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='accounts.team'),
        ),
        migrations.AddConstraint(
            model_name='claim',
            constraint=models.CheckConstraint(condition=models.Q(('devices__gt', 0)), name='claim_keeps_devices'),
        ),
        migrations.AddConstraint(
            model_name='usagedecay',
            constraint=models.UniqueConstraint(fields=('pool', 'team'), name='one_history_per_pool_and_team'),
        ),
        migrations.RunSQL(WITHIN_LIMITS, NO_LIMITS),
        migrations.RunSQL(NOMINAL_FITS, NO_FIT),
    ]
