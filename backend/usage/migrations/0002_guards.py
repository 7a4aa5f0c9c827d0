"""A price that has begun and a settled slice of usage never change."""

from django.db import migrations

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
    RAISE EXCEPTION 'what was settled never changes' USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER laminar_guard_slice BEFORE UPDATE ON usage_usageslice
    FOR EACH ROW EXECUTE FUNCTION laminar_guard_slice();
"""


class Migration(migrations.Migration):
    dependencies = [("usage", "0001_initial")]

    operations = [
        migrations.RunSQL(PRICE_GUARD, migrations.RunSQL.noop),
        migrations.RunSQL(SLICE_GUARD, migrations.RunSQL.noop),
    ]
