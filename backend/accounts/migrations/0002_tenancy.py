"""Roles that hold, invitations, service accounts, keys with owners and ceilings; and what the database refuses:

- a team that has an owner keeps one: who takes the last away is refused at commit, also in a race (the team's row is
  the lock under which owners are counted);
- a service account's shadow is never an admin or an owner.
"""

import backend.accounts.models
import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


OWNER_GUARD = """
CREATE FUNCTION laminar_guard_owner() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM accounts_team WHERE id = OLD.team_id FOR NO KEY UPDATE;
    IF FOUND AND NOT EXISTS (SELECT 1 FROM accounts_membership WHERE team_id = OLD.team_id AND role = 'owner') THEN
        RAISE EXCEPTION 'team %: its last owner cannot go', OLD.team_id
            USING ERRCODE = 'restrict_violation', CONSTRAINT = 'team_keeps_an_owner';
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER laminar_guard_owner AFTER UPDATE OR DELETE ON accounts_membership
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (OLD.role = 'owner') EXECUTE FUNCTION laminar_guard_owner();
"""
SHADOW_GUARD = """
CREATE FUNCTION laminar_guard_shadow() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.role NOT IN ('member', 'viewer')
       AND EXISTS (SELECT 1 FROM accounts_user WHERE id = NEW.user_id AND is_service) THEN
        RAISE EXCEPTION 'a service account is a member or a viewer' USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER laminar_guard_shadow BEFORE INSERT OR UPDATE ON accounts_membership
    FOR EACH ROW EXECUTE FUNCTION laminar_guard_shadow();
"""
# What a key's jobs hold and have used is asked at each submission with a key that has a ceiling.
JOBS_OF_A_KEY = "CREATE INDEX job_submitted_by ON jobs_jobevent (actor) WHERE type = 'submitted'"
PUBLIC_IDS = "UPDATE accounts_user SET public_id = 'user_' || substr(md5(random()::text || id), 1, 20)"
OWNERS = "UPDATE accounts_apikey SET owner_id = created_by_id"


class Migration(migrations.Migration):

    dependencies = [
        ('accounts', '0001_initial'),
        ('auth', '0012_alter_user_first_name_max_length'),
        ('jobs', '0005_platform'),
    ]

    operations = [
        migrations.CreateModel(
            name='Invitation',
            fields=[
                ('id', models.CharField(default=backend.accounts.models._invitation_id, editable=False, max_length=32, primary_key=True, serialize=False)),
                ('email', models.EmailField(max_length=254)),
                ('role', models.CharField(choices=[('owner', 'Owner'), ('admin', 'Admin'), ('member', 'Member'), ('viewer', 'Viewer')], max_length=10)),
                ('token_sha256', models.CharField(max_length=64, unique=True)),
                ('created_at', models.DateTimeField()),
                ('expires_at', models.DateTimeField()),
                ('accepted_at', models.DateTimeField(null=True)),
                ('revoked_at', models.DateTimeField(null=True)),
            ],
        ),
        migrations.CreateModel(
            name='ServiceAccount',
            fields=[
                ('id', models.CharField(default=backend.accounts.models._service_account_id, editable=False, max_length=32, primary_key=True, serialize=False)),
                ('name', models.CharField(max_length=80)),
                ('created_at', models.DateTimeField()),
                ('closed_at', models.DateTimeField(null=True)),
            ],
        ),
        migrations.CreateModel(
            name='SharedEntry',
            fields=[
                ('key', models.CharField(max_length=300, primary_key=True, serialize=False)),
                ('value', models.JSONField()),
                ('expires_at', models.DateTimeField(null=True)),
            ],
        ),
        migrations.AddField(
            model_name='apikey',
            name='created_with',
            field=models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='offspring', to='accounts.apikey'),
        ),
        migrations.AddField(
            model_name='apikey',
            name='max_devices',
            field=models.PositiveIntegerField(null=True),
        ),
        migrations.AddField(
            model_name='apikey',
            name='max_gpu_hours',
            field=models.DecimalField(decimal_places=2, max_digits=12, null=True),
        ),
        migrations.AddField(
            model_name='apikey',
            name='owner',
            field=models.ForeignKey(null=True, on_delete=django.db.models.deletion.CASCADE, related_name='+', to=settings.AUTH_USER_MODEL),
        ),
        migrations.RunSQL(OWNERS, migrations.RunSQL.noop),
        migrations.AddField(
            model_name='apikey',
            name='project',
            field=models.ForeignKey(null=True, on_delete=django.db.models.deletion.CASCADE, related_name='api_keys', to='accounts.project'),
        ),
        migrations.AddField(
            model_name='team',
            name='requires_mfa',
            field=models.BooleanField(default=False),
        ),
        migrations.AddField(
            model_name='user',
            name='is_service',
            field=models.BooleanField(default=False, editable=False),
        ),
        migrations.AddField(
            model_name='user',
            name='public_id',
            field=models.CharField(max_length=32, null=True),
        ),
        migrations.RunSQL(PUBLIC_IDS, migrations.RunSQL.noop),
        migrations.RunSQL("SET CONSTRAINTS ALL IMMEDIATE", migrations.RunSQL.noop),
        migrations.AlterField(
            model_name='user',
            name='public_id',
            field=models.CharField(default=backend.accounts.models._user_id, editable=False, max_length=32, unique=True),
        ),
        migrations.AlterField(
            model_name='apikey',
            name='created_by',
            field=models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL),
        ),
        migrations.AlterField(
            model_name='apikey',
            name='owner',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='api_keys', to=settings.AUTH_USER_MODEL),
        ),
        migrations.AddConstraint(
            model_name='user',
            constraint=models.CheckConstraint(condition=models.Q(('is_service', False), models.Q(('is_staff', False), ('is_superuser', False), ('password__startswith', '!')), _connector='OR'), name='service_accounts_do_not_sign_in'),
        ),
        migrations.AddField(
            model_name='invitation',
            name='invited_by',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to=settings.AUTH_USER_MODEL),
        ),
        migrations.AddField(
            model_name='invitation',
            name='team',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='invitations', to='accounts.team'),
        ),
        migrations.AddField(
            model_name='serviceaccount',
            name='project',
            field=models.ForeignKey(null=True, on_delete=django.db.models.deletion.CASCADE, related_name='service_accounts', to='accounts.project'),
        ),
        migrations.AddField(
            model_name='serviceaccount',
            name='team',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='service_accounts', to='accounts.team'),
        ),
        migrations.AddField(
            model_name='serviceaccount',
            name='user',
            field=models.OneToOneField(on_delete=django.db.models.deletion.PROTECT, related_name='service_account', to=settings.AUTH_USER_MODEL),
        ),
        migrations.AddIndex(
            model_name='sharedentry',
            index=models.Index(fields=['expires_at'], name='shared_entry_expiry'),
        ),
        migrations.AddConstraint(
            model_name='invitation',
            constraint=models.UniqueConstraint(condition=models.Q(('accepted_at__isnull', True), ('revoked_at__isnull', True)), fields=('team', 'email'), name='one_open_invitation_per_address'),
        ),
        migrations.AddConstraint(
            model_name='serviceaccount',
            constraint=models.UniqueConstraint(condition=models.Q(('closed_at__isnull', True)), fields=('team', 'name'), name='service_account_name_in_team'),
        ),
        migrations.RunSQL(
            OWNER_GUARD,
            "DROP TRIGGER laminar_guard_owner ON accounts_membership; DROP FUNCTION laminar_guard_owner();",
        ),
        migrations.RunSQL(
            SHADOW_GUARD,
            "DROP TRIGGER laminar_guard_shadow ON accounts_membership; DROP FUNCTION laminar_guard_shadow();",
        ),
        migrations.RunSQL(JOBS_OF_A_KEY, "DROP INDEX job_submitted_by"),
    ]
