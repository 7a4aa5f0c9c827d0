"""A price that has begun never changes; of a settled slice of usage only what is credited."""

import django.db.models.deletion
import django.db.models.expressions
from django.conf import settings
from django.db import migrations, models

PRICE_GUARD = """
CREATE FUNCTION laminar_guard_price() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' OR OLD.valid_from <= clock_timestamp() THEN
        RAISE EXCEPTION 'a price never changes, and one that has begun stays: % refused', TG_OP
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN OLD;
END $$;
CREATE TRIGGER laminar_guard_price BEFORE UPDATE OR DELETE ON usage_poolprice
    FOR EACH ROW EXECUTE FUNCTION laminar_guard_price();
"""
SLICE_GUARD = """
CREATE FUNCTION laminar_guard_slice() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF to_jsonb(NEW) - 'credited_us' - 'cost_credited' <> to_jsonb(OLD) - 'credited_us' - 'cost_credited' THEN
        RAISE EXCEPTION 'what was settled never changes' USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER laminar_guard_slice BEFORE UPDATE ON usage_usageslice
    FOR EACH ROW EXECUTE FUNCTION laminar_guard_slice();
"""


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('accounts', '0001_initial'),
        ('jobs', '0001_initial'),
        ('pools', '0001_initial'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='SiteCurrency',
            fields=[
                ('id', models.SmallIntegerField(default=1, editable=False, primary_key=True, serialize=False)),
                ('code', models.CharField(max_length=3)),
            ],
            options={
                'constraints': [models.CheckConstraint(condition=models.Q(('id', 1)), name='a_site_has_one_currency'), models.CheckConstraint(condition=models.Q(('code__regex', '^[A-Z]{3}$')), name='currency_is_iso_4217')],
            },
        ),
        migrations.CreateModel(
            name='PoolPrice',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('per_device_second', models.DecimalField(decimal_places=12, max_digits=24)),
                ('valid_from', models.DateTimeField()),
                ('created_at', models.DateTimeField()),
                ('created_by', models.CharField(max_length=64)),
                ('pool', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='pools.resourcepool')),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('pool', 'valid_from'), name='one_price_per_pool_and_moment'), models.CheckConstraint(condition=models.Q(('per_device_second__gte', 0)), name='price_is_not_negative'), models.CheckConstraint(condition=models.Q(('valid_from__gte', models.F('created_at'))), name='price_begins_when_made_or_later')],
            },
        ),
        migrations.CreateModel(
            name='UsageSlice',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('day', models.DateField()),
                ('key', models.CharField(blank=True, default='', max_length=32)),
                ('held_us', models.PositiveBigIntegerField()),
                ('startup_us', models.PositiveBigIntegerField(default=0)),
                ('useful_us', models.PositiveBigIntegerField(default=0)),
                ('stale_us', models.PositiveBigIntegerField(default=0)),
                ('fault_us', models.PositiveBigIntegerField(default=0)),
                ('idle_us', models.PositiveBigIntegerField(default=0)),
                ('credited_us', models.PositiveBigIntegerField(default=0)),
                ('cost', models.DecimalField(db_default=0, decimal_places=18, default=0, max_digits=48)),
                ('cost_credited', models.DecimalField(db_default=0, decimal_places=18, default=0, max_digits=48)),
                ('job', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='usage', to='jobs.job')),
                ('project', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='accounts.project')),
                ('reservation', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='usage', to='pools.reservation')),
                ('team', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='accounts.team')),
                ('user', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'indexes': [models.Index(fields=['team', 'day'], name='usage_of_team')],
                'constraints': [models.UniqueConstraint(fields=('reservation', 'day'), name='one_slice_per_reservation_and_day'), models.CheckConstraint(condition=models.Q(('held_us', django.db.models.expressions.CombinedExpression(django.db.models.expressions.CombinedExpression(django.db.models.expressions.CombinedExpression(django.db.models.expressions.CombinedExpression(models.F('startup_us'), '+', models.F('useful_us')), '+', models.F('stale_us')), '+', models.F('fault_us')), '+', models.F('idle_us')))), name='usage_kinds_add_up'), models.CheckConstraint(condition=models.Q(('credited_us__lte', models.F('fault_us'))), name='usage_credits_faults_only'), models.CheckConstraint(condition=models.Q(('cost_credited__gte', 0), ('cost_credited__lte', models.F('cost'))), name='usage_gives_back_what_it_cost')],
            },
        ),
        migrations.CreateModel(
            name='AttemptCredit',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('reason', models.CharField(max_length=300)),
                ('given_at', models.DateTimeField()),
                ('given_by', models.CharField(max_length=64)),
                ('taken_back_at', models.DateTimeField(null=True)),
                ('taken_back_by', models.CharField(blank=True, default='', max_length=64)),
                ('attempt', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='credits', to='jobs.jobattempt')),
            ],
            options={
                'constraints': [models.UniqueConstraint(condition=models.Q(('taken_back_at__isnull', True)), fields=('attempt',), name='one_credit_per_attempt'), models.CheckConstraint(condition=models.Q(models.Q(('taken_back_at__isnull', True), ('taken_back_by', '')), models.Q(('taken_back_at__isnull', False), models.Q(('taken_back_by', ''), _negated=True)), _connector='OR'), name='credit_taken_back_by_someone')],
            },
        ),
        migrations.CreateModel(
            name='CreditedSlice',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('credited_us', models.PositiveBigIntegerField()),
                ('cost_credited', models.DecimalField(decimal_places=18, max_digits=48)),
                ('credit', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='slices', to='usage.attemptcredit')),
                ('slice', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='usage.usageslice')),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('credit', 'slice'), name='one_part_per_credit_and_slice')],
            },
        ),
        migrations.RunSQL(PRICE_GUARD, migrations.RunSQL.noop),
        migrations.RunSQL(SLICE_GUARD, migrations.RunSQL.noop),
    ]
