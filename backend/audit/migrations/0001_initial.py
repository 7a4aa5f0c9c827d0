"""The audit log is append-only, and the head of its hash chain moves by one entry at a time."""

import django.db.models.deletion
from django.db import migrations, models

ENTRY_GUARD = """
CREATE FUNCTION laminar_guard_audit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the audit log is append-only: % refused', TG_OP USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER laminar_guard_audit BEFORE UPDATE OR DELETE ON audit_auditentry
    FOR EACH ROW EXECUTE FUNCTION laminar_guard_audit();
CREATE TRIGGER laminar_guard_audit_truncate BEFORE TRUNCATE ON audit_auditentry
    FOR EACH STATEMENT EXECUTE FUNCTION laminar_guard_audit();
"""
HEAD_GUARD = """
CREATE FUNCTION laminar_guard_audit_head() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'UPDATE' THEN
        RAISE EXCEPTION 'the head of an audit log stays: % refused', TG_OP USING ERRCODE = 'restrict_violation';
    END IF;
    IF NEW.team_id <> OLD.team_id OR NEW.anchored_seq < OLD.anchored_seq OR NEW.anchored_seq > NEW.seq
       OR NOT (NEW.seq = OLD.seq + 1 OR (NEW.seq = OLD.seq AND NEW.hash = OLD.hash)) THEN
        RAISE EXCEPTION 'the head of an audit log moves by one entry' USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER laminar_guard_audit_head BEFORE UPDATE OR DELETE ON audit_audithead
    FOR EACH ROW EXECUTE FUNCTION laminar_guard_audit_head();
CREATE TRIGGER laminar_guard_audit_head_truncate BEFORE TRUNCATE ON audit_audithead
    FOR EACH STATEMENT EXECUTE FUNCTION laminar_guard_audit_head();
"""


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('accounts', '0001_initial'),
    ]

    operations = [
        migrations.CreateModel(
            name='AuditHead',
            fields=[
                ('team', models.OneToOneField(on_delete=django.db.models.deletion.PROTECT, primary_key=True, related_name='audit_head', serialize=False, to='accounts.team')),
                ('seq', models.PositiveBigIntegerField(default=0)),
                ('hash', models.CharField(default='0000000000000000000000000000000000000000000000000000000000000000', max_length=64)),
                ('anchored_seq', models.PositiveBigIntegerField(default=0)),
            ],
        ),
        migrations.CreateModel(
            name='AuditEntry',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('seq', models.PositiveBigIntegerField()),
                ('at', models.DateTimeField()),
                ('actor', models.CharField(max_length=80)),
                ('action', models.CharField(max_length=60)),
                ('target', models.CharField(max_length=80)),
                ('data', models.JSONField(default=dict)),
                ('request_id', models.CharField(blank=True, default='', max_length=64)),
                ('ip', models.CharField(blank=True, default='', max_length=45)),
                ('previous_hash', models.CharField(max_length=64)),
                ('hash', models.CharField(max_length=64)),
                ('team', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='audit_entries', to='accounts.team')),
            ],
            options={
                'indexes': [models.Index(fields=['team', 'actor', '-seq'], name='audit_by_actor'), models.Index(fields=['team', 'target', '-seq'], name='audit_by_target')],
                'constraints': [models.UniqueConstraint(fields=('team', 'seq'), name='one_audit_entry_per_seq')],
            },
        ),
        migrations.RunSQL(ENTRY_GUARD, migrations.RunSQL.noop),
        migrations.RunSQL(HEAD_GUARD, migrations.RunSQL.noop),
    ]
