"""What the database refuses about teams, whoever asks.

- a team that has an owner keeps one: a transaction that takes the last owner away is refused at commit, also in a race
  (the team's row is the lock under which owners are counted);
- a service account's user is never an admin or an owner.
"""

from django.db import migrations

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
    dependencies = [("accounts", "0001_initial")]

    operations = [
        migrations.RunSQL(OWNER_GUARD, migrations.RunSQL.noop),
        migrations.RunSQL(SHADOW_GUARD, migrations.RunSQL.noop),
    ]
