"""An address counts only once proved; people who are there keep theirs.

Until now only open sign-up asked for a proof, so most have no row of it, and the page that is gone with this release
wrote one for whatever somebody typed. So:
- addresses are written in lower case, as sign-in reads them (of two that differ in nothing else, the first account's);
- who has no row, or has signed in and has one, of their own address: theirs is proved;
- who proved one and made another primary without proving it: back to the proved one, if nobody else has it;
- who has several and proved none: the one they sign in with is theirs to prove (by mail, or by the operator's word);
- every other row goes.
Whoever the former release takes in after this ran has no row yet, and proves theirs in the same two ways.
"""

import backend.accounts.models
import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

LOWER_CASE = """
UPDATE accounts_user person SET email = lower(email)
WHERE email <> lower(email)
  AND NOT EXISTS (SELECT 1 FROM accounts_user other WHERE other.id <> person.id AND lower(other.email) = lower(person.email))
"""
BACK_TO_THE_PROVED = """
UPDATE accounts_user person SET email = proved.email
FROM account_emailaddress proved
WHERE proved.user_id = person.id AND proved.verified AND proved.email <> lower(person.email)
  AND proved.id = (SELECT min(id) FROM account_emailaddress WHERE user_id = person.id AND verified)
  AND NOT EXISTS (SELECT 1 FROM account_emailaddress own
                  WHERE own.user_id = person.id AND own.verified AND own.email = lower(person.email))
  AND NOT EXISTS (SELECT 1 FROM accounts_user other WHERE lower(other.email) = proved.email)
"""
KEEPS_THEIRS = """
UPDATE account_emailaddress own SET verified = true
FROM accounts_user person
WHERE own.user_id = person.id AND own.email = lower(person.email) AND NOT own.verified
  AND person.last_login IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM account_emailaddress other WHERE other.user_id = person.id AND other.id <> own.id)
  AND NOT EXISTS (SELECT 1 FROM account_emailaddress taken WHERE taken.verified AND taken.email = own.email)
"""
THE_OTHERS_GO = """
DELETE FROM account_emailaddress row USING accounts_user person
WHERE row.user_id = person.id AND row.email <> lower(person.email)
"""
PRIMARY = 'UPDATE account_emailaddress SET "primary" = true WHERE NOT "primary"'
WRITTEN = """
INSERT INTO account_emailaddress (user_id, email, verified, "primary")
SELECT id, lower(email), true, true FROM accounts_user person
WHERE NOT is_service AND NOT EXISTS (SELECT 1 FROM account_emailaddress WHERE user_id = person.id)
ORDER BY id
ON CONFLICT DO NOTHING
"""


class Migration(migrations.Migration):
    dependencies = [
        ("account", "0009_emailaddress_unique_primary_email"),
        ("accounts", "0003_trajectories_read"),
    ]

    operations = [
        migrations.AddField(
            "user", "address_by_hand", models.BooleanField(db_default=False, default=False, editable=False)
        ),
        migrations.AddField("invitation", "mailed", models.BooleanField(db_default=False, default=False)),
        migrations.CreateModel(
            name="AddressChange",
            fields=[
                (
                    "id",
                    models.CharField(
                        default=backend.accounts.models._change_id,
                        editable=False,
                        max_length=32,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("before", models.EmailField(max_length=254)),
                ("after", models.EmailField(max_length=254)),
                ("proof_sha256", models.CharField(max_length=64, unique=True)),
                ("by_operator", models.BooleanField(default=False)),
                ("asked_at", models.DateTimeField()),
                ("done_at", models.DateTimeField(null=True)),
                ("cancelled_at", models.DateTimeField(null=True)),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="address_changes",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
        ),
        migrations.AddConstraint(
            model_name="addresschange",
            constraint=models.UniqueConstraint(
                condition=models.Q(("cancelled_at__isnull", True), ("done_at__isnull", True)),
                fields=("user",),
                name="one_open_address_change_a_person",
            ),
        ),
        migrations.CreateModel(
            name="ResetLink",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("token_sha256", models.CharField(max_length=64, unique=True)),
                ("by_operator", models.BooleanField(default=False)),
                ("made_at", models.DateTimeField()),
                ("expires_at", models.DateTimeField()),
                ("used_at", models.DateTimeField(null=True)),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="reset_links",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
        ),
        migrations.RunSQL(LOWER_CASE, migrations.RunSQL.noop),
        migrations.RunSQL(BACK_TO_THE_PROVED, migrations.RunSQL.noop),
        migrations.RunSQL(KEEPS_THEIRS, migrations.RunSQL.noop),
        migrations.RunSQL(THE_OTHERS_GO, migrations.RunSQL.noop),
        migrations.RunSQL(PRIMARY, migrations.RunSQL.noop),
        migrations.RunSQL(WRITTEN, migrations.RunSQL.noop),
    ]
