"""What the database refuses about capacity, quotas and reservations.

Each check locks the pool's row first, as the scheduler does. Any other writer (a bug, an admin page, psql) takes turns
with it, so two writers cannot both see the room that only one of them may have.

A job that only evaluates holds replicas and no trainer: its elastic replicas then need those. `spec` never changes.
"""

import backend.pools.models
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

    initial = True

    dependencies = [
        ('accounts', '0001_initial'),
        ('jobs', '0001_initial'),
    ]

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
            name='ResourcePool',
            fields=[
                ('id', models.CharField(default=backend.pools.models._pool_id, editable=False, max_length=32, primary_key=True, serialize=False)),
                ('name', models.CharField(max_length=80, unique=True)),
                ('flavor', models.CharField(max_length=40)),
                ('capacity', models.PositiveIntegerField()),
                ('device_gb', models.PositiveIntegerField(blank=True, null=True)),
                ('is_open', models.BooleanField(default=True)),
                ('version', models.PositiveIntegerField(default=1, editable=False)),
                ('ray_url', models.CharField(blank=True, db_default='', default='', max_length=300)),
                ('ray_token', models.CharField(blank=True, db_default='', default='', max_length=64)),
                ('labels', models.JSONField(blank=True, db_default=models.Value({}, models.JSONField()), default=dict)),
                ('device', models.CharField(blank=True, choices=[('gpu', 'Gpu'), ('cpu', 'Cpu')], db_default='', default='', max_length=3)),
                ('autoscales', models.BooleanField(db_default=False, default=False)),
            ],
        ),
        migrations.CreateModel(
            name='Reservation',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('attempt', models.PositiveIntegerField()),
                ('role', models.CharField(choices=[('trainer', 'Trainer'), ('rollout', 'Rollout'), ('elastic', 'Elastic')], max_length=10)),
                ('slot', models.PositiveIntegerField(default=0)),
                ('devices', models.PositiveIntegerField()),
                ('borrowed', models.PositiveIntegerField(default=0)),
                ('created_at', models.DateTimeField()),
                ('reclaimed_at', models.DateTimeField(null=True)),
                ('released_at', models.DateTimeField(null=True)),
            ],
        ),
        migrations.CreateModel(
            name='TeamQuota',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('nominal', models.PositiveIntegerField()),
                ('borrow_limit', models.PositiveIntegerField(blank=True, null=True)),
                ('lend_limit', models.PositiveIntegerField(blank=True, null=True)),
                ('weight', models.FloatField(default=1.0)),
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
        migrations.CreateModel(
            name='DrainedHost',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('ray_url', models.CharField(blank=True, default='', max_length=300)),
                ('name', models.CharField(max_length=255)),
                ('at', models.DateTimeField()),
                ('by', models.CharField(max_length=64)),
                ('reason', models.CharField(blank=True, default='', max_length=200)),
                ('labels', models.JSONField(default=dict)),
                ('cpus', models.FloatField()),
                ('gpus', models.FloatField()),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('ray_url', 'name'), name='host_is_drained_once')],
            },
        ),
        migrations.CreateModel(
            name='Maintenance',
            fields=[
                ('id', models.CharField(default=backend.pools.models._maintenance_id, editable=False, max_length=32, primary_key=True, serialize=False)),
                ('text', models.CharField(max_length=300)),
                ('begins_at', models.DateTimeField()),
                ('ends_at', models.DateTimeField()),
                ('stops_from', models.DateTimeField(null=True)),
                ('created_at', models.DateTimeField()),
                ('ended_at', models.DateTimeField(null=True)),
                ('version', models.PositiveIntegerField(default=1)),
            ],
            options={
                'constraints': [models.CheckConstraint(condition=models.Q(('ends_at__gt', models.F('begins_at'))), name='maintenance_ends_after_it_begins')],
            },
        ),
        migrations.CreateModel(
            name='ClusterProbe',
            fields=[
                ('pool', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='probe', serialize=False, to='pools.resourcepool')),
                ('at', models.DateTimeField()),
                ('problem', models.CharField(blank=True, default='', max_length=300)),
                ('seen_at', models.DateTimeField(null=True)),
                ('hosts', models.JSONField(default=list)),
                ('devices', models.PositiveIntegerField(null=True)),
                ('promised', models.PositiveIntegerField(null=True)),
                ('failing_since', models.DateTimeField(null=True)),
            ],
        ),
        migrations.AddConstraint(
            model_name='resourcepool',
            constraint=models.CheckConstraint(condition=models.Q(('device__in', ['', 'gpu', 'cpu'])), name='pool_device_known'),
        ),
        migrations.AddConstraint(
            model_name='resourcepool',
            constraint=models.CheckConstraint(condition=models.Q(('ray_token', ''), models.Q(('ray_url', ''), _negated=True), _connector='OR'), name='pool_token_has_address'),
        ),
        migrations.AddField(
            model_name='claim',
            name='pool',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='claims', to='pools.resourcepool'),
        ),
        migrations.AddField(
            model_name='reservation',
            name='job',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='reservations', to='jobs.job'),
        ),
        migrations.AddField(
            model_name='reservation',
            name='pool',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='reservations', to='pools.resourcepool'),
        ),
        migrations.AddField(
            model_name='reservation',
            name='team',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='reservations', to='accounts.team'),
        ),
        migrations.AddField(
            model_name='teamquota',
            name='pool',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='quotas', to='pools.resourcepool'),
        ),
        migrations.AddField(
            model_name='teamquota',
            name='team',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='quotas', to='accounts.team'),
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
        migrations.AddIndex(
            model_name='reservation',
            index=models.Index(condition=models.Q(('released_at__isnull', True)), fields=['pool', 'team'], name='live_reservations'),
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
            constraint=models.CheckConstraint(condition=models.Q(('devices__gt', 0)), name='reservation_holds_devices'),
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
            model_name='reservation',
            constraint=models.CheckConstraint(condition=models.Q(('released_at__isnull', True), ('released_at__gte', models.F('created_at')), _connector='OR'), name='reservation_ends_after_it_begins'),
        ),
        migrations.AddConstraint(
            model_name='teamquota',
            constraint=models.UniqueConstraint(fields=('pool', 'team'), name='one_quota_per_pool_and_team'),
        ),
        migrations.AddConstraint(
            model_name='teamquota',
            constraint=models.CheckConstraint(condition=models.Q(('weight__gt', 0)), name='quota_weight_is_positive'),
        ),
        migrations.AddConstraint(
            model_name='usagedecay',
            constraint=models.UniqueConstraint(fields=('pool', 'team'), name='one_history_per_pool_and_team'),
        ),
        migrations.RunSQL(WITHIN_LIMITS, migrations.RunSQL.noop),
        migrations.RunSQL(ELASTIC_HAS_CORE, migrations.RunSQL.noop),
        migrations.RunSQL(NOMINAL_FITS, migrations.RunSQL.noop),
    ]
