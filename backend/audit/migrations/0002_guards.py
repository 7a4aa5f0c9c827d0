"""The audit log is append-only, and the head of its hash chain moves by one entry at a time."""

from django.db import migrations

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
    dependencies = [("audit", "0001_initial")]

    operations = [
        migrations.RunSQL(ENTRY_GUARD, migrations.RunSQL.noop),
        migrations.RunSQL(HEAD_GUARD, migrations.RunSQL.noop),
    ]
