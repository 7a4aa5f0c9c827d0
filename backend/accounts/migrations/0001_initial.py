"""Rules about teams that the database enforces.

- a team that has an owner keeps one: a transaction that takes the last owner away is refused at commit, also in a race
  (the team's row is the lock under which owners are counted);
- a service account's user is never an admin or an owner.
"""

import backend.accounts.models
import django.contrib.postgres.fields
import django.db.models.deletion
import django.utils.timezone
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


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('auth', '0012_alter_user_first_name_max_length'),
        ('sessions', '0001_initial'),
    ]

    operations = [
        migrations.CreateModel(
            name='Project',
            fields=[
                ('id', models.CharField(default=backend.accounts.models._project_id, editable=False, max_length=32, primary_key=True, serialize=False)),
                ('name', models.CharField(max_length=80)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
            ],
        ),
        migrations.CreateModel(
            name='Team',
            fields=[
                ('id', models.CharField(default=backend.accounts.models._team_id, editable=False, max_length=32, primary_key=True, serialize=False)),
                ('name', models.CharField(max_length=80)),
                ('requires_mfa', models.BooleanField(default=False)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
            ],
        ),
        migrations.CreateModel(
            name='User',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('password', models.CharField(max_length=128, verbose_name='password')),
                ('last_login', models.DateTimeField(blank=True, null=True, verbose_name='last login')),
                ('is_superuser', models.BooleanField(default=False, help_text='Designates that this user has all permissions without explicitly assigning them.', verbose_name='superuser status')),
                ('first_name', models.CharField(blank=True, max_length=150, verbose_name='first name')),
                ('last_name', models.CharField(blank=True, max_length=150, verbose_name='last name')),
                ('is_staff', models.BooleanField(default=False, help_text='Designates whether the user can log into this admin site.', verbose_name='staff status')),
                ('is_active', models.BooleanField(default=True, help_text='Designates whether this user should be treated as active. Unselect this instead of deleting accounts.', verbose_name='active')),
                ('date_joined', models.DateTimeField(default=django.utils.timezone.now, verbose_name='date joined')),
                ('email', models.EmailField(max_length=254, unique=True)),
                ('public_id', models.CharField(default=backend.accounts.models._user_id, editable=False, max_length=32, unique=True)),
                ('is_service', models.BooleanField(default=False, editable=False)),
                ('address_by_hand', models.BooleanField(db_default=False, default=False, editable=False)),
                ('groups', models.ManyToManyField(blank=True, help_text='The groups this user belongs to. A user will get all permissions granted to each of their groups.', related_name='user_set', related_query_name='user', to='auth.group', verbose_name='groups')),
                ('user_permissions', models.ManyToManyField(blank=True, help_text='Specific permissions for this user.', related_name='user_set', related_query_name='user', to='auth.permission', verbose_name='user permissions')),
            ],
            options={
                'verbose_name': 'user',
                'verbose_name_plural': 'users',
                'abstract': False,
            },
        ),
        migrations.CreateModel(
            name='AddressChange',
            fields=[
                ('id', models.CharField(default=backend.accounts.models._change_id, editable=False, max_length=32, primary_key=True, serialize=False)),
                ('before', models.EmailField(max_length=254)),
                ('after', models.EmailField(max_length=254)),
                ('proof_sha256', models.CharField(max_length=64, unique=True)),
                ('by_operator', models.BooleanField(default=False)),
                ('asked_at', models.DateTimeField()),
                ('done_at', models.DateTimeField(null=True)),
                ('cancelled_at', models.DateTimeField(null=True)),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='address_changes', to=settings.AUTH_USER_MODEL)),
            ],
        ),
        migrations.CreateModel(
            name='ApiKey',
            fields=[
                ('id', models.CharField(default=backend.accounts.models._key_id, editable=False, max_length=32, primary_key=True, serialize=False)),
                ('name', models.CharField(max_length=80)),
                ('prefix', models.CharField(max_length=40, unique=True)),
                ('secret_sha256', models.CharField(max_length=64)),
                ('scopes', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=30), size=None)),
                ('max_devices', models.PositiveIntegerField(null=True)),
                ('max_gpu_hours', models.DecimalField(decimal_places=2, max_digits=12, null=True)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('expires_at', models.DateTimeField(null=True)),
                ('revoked_at', models.DateTimeField(null=True)),
                ('last_used_at', models.DateTimeField(null=True)),
                ('created_by', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('created_with', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='offspring', to='accounts.apikey')),
                ('owner', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='api_keys', to=settings.AUTH_USER_MODEL)),
                ('project', models.ForeignKey(null=True, on_delete=django.db.models.deletion.CASCADE, related_name='api_keys', to='accounts.project')),
                ('team', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='api_keys', to='accounts.team')),
            ],
        ),
        migrations.CreateModel(
            name='ResetLink',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('token_sha256', models.CharField(max_length=64, unique=True)),
                ('by_operator', models.BooleanField(default=False)),
                ('made_at', models.DateTimeField()),
                ('expires_at', models.DateTimeField()),
                ('used_at', models.DateTimeField(null=True)),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='reset_links', to=settings.AUTH_USER_MODEL)),
            ],
        ),
        migrations.CreateModel(
            name='SharedEntry',
            fields=[
                ('key', models.CharField(max_length=300, primary_key=True, serialize=False)),
                ('value', models.JSONField()),
                ('expires_at', models.DateTimeField(null=True)),
            ],
            options={
                'indexes': [models.Index(fields=['expires_at'], name='shared_entry_expiry')],
            },
        ),
        migrations.CreateModel(
            name='SignedIn',
            fields=[
                ('session', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='signed_in', serialize=False, to='sessions.session')),
                ('public_id', models.CharField(default=backend.accounts.models._signed_in_id, max_length=32, unique=True)),
                ('began_at', models.DateTimeField()),
                ('seen_at', models.DateTimeField()),
                ('ip', models.CharField(blank=True, max_length=45)),
                ('user_agent', models.CharField(blank=True, max_length=200)),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='signed_in', to=settings.AUTH_USER_MODEL)),
            ],
        ),
        migrations.CreateModel(
            name='ServiceAccount',
            fields=[
                ('id', models.CharField(default=backend.accounts.models._service_account_id, editable=False, max_length=32, primary_key=True, serialize=False)),
                ('name', models.CharField(max_length=80)),
                ('created_at', models.DateTimeField()),
                ('closed_at', models.DateTimeField(null=True)),
                ('project', models.ForeignKey(null=True, on_delete=django.db.models.deletion.CASCADE, related_name='service_accounts', to='accounts.project')),
                ('user', models.OneToOneField(on_delete=django.db.models.deletion.PROTECT, related_name='service_account', to=settings.AUTH_USER_MODEL)),
                ('team', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='service_accounts', to='accounts.team')),
            ],
        ),
        migrations.AddField(
            model_name='project',
            name='team',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='projects', to='accounts.team'),
        ),
        migrations.CreateModel(
            name='Membership',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('role', models.CharField(choices=[('owner', 'Owner'), ('admin', 'Admin'), ('member', 'Member'), ('viewer', 'Viewer')], max_length=10)),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='memberships', to=settings.AUTH_USER_MODEL)),
                ('team', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='memberships', to='accounts.team')),
            ],
        ),
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
                ('mailed', models.BooleanField(db_default=False, default=False)),
                ('invited_by', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('made_with', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='accounts.apikey')),
                ('team', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='invitations', to='accounts.team')),
            ],
        ),
        migrations.AddConstraint(
            model_name='user',
            constraint=models.CheckConstraint(condition=models.Q(('is_service', False), models.Q(('is_staff', False), ('is_superuser', False), ('password__startswith', '!')), _connector='OR'), name='service_accounts_do_not_sign_in'),
        ),
        migrations.AddConstraint(
            model_name='addresschange',
            constraint=models.UniqueConstraint(condition=models.Q(('cancelled_at__isnull', True), ('done_at__isnull', True)), fields=('user',), name='one_open_address_change_a_person'),
        ),
        migrations.AddConstraint(
            model_name='serviceaccount',
            constraint=models.UniqueConstraint(condition=models.Q(('closed_at__isnull', True)), fields=('team', 'name'), name='service_account_name_in_team'),
        ),
        migrations.AddConstraint(
            model_name='project',
            constraint=models.UniqueConstraint(fields=('team', 'name'), name='project_name_in_team'),
        ),
        migrations.AddConstraint(
            model_name='membership',
            constraint=models.UniqueConstraint(fields=('user', 'team'), name='one_membership_per_team'),
        ),
        migrations.AddConstraint(
            model_name='invitation',
            constraint=models.UniqueConstraint(condition=models.Q(('accepted_at__isnull', True), ('revoked_at__isnull', True)), fields=('team', 'email'), name='one_open_invitation_per_address'),
        ),
        migrations.RunSQL(OWNER_GUARD, migrations.RunSQL.noop),
        migrations.RunSQL(SHADOW_GUARD, migrations.RunSQL.noop),
    ]
