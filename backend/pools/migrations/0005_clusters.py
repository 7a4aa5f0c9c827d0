"""A pool's Ray, the hosts of it that the pool may use, and what that Ray was last seen to have.

What runs stays where it is: an empty address is the site's own Ray. Pools that were called "cpu" are said to be of CPUs:
until now that was a word on a page, and beside GPUs they took GPUs.
"""

from typing import Any

import django.db.models.deletion
from django.db import migrations, models
from django.db.models import Q, Value


def say_what_the_flavor_meant(apps: Any, schema_editor: Any) -> None:
    apps.get_model("pools", "ResourcePool").objects.filter(flavor__iexact="cpu", device="").update(device="cpu")


class Migration(migrations.Migration):
    expands = "old code leaves the new columns at their defaults, which keep to these rules"
    dependencies = [("pools", "0004_device_gb")]

    operations = [
        migrations.AddField(
            "resourcepool", "ray_url", models.CharField(blank=True, db_default="", default="", max_length=300)
        ),
        migrations.AddField(
            "resourcepool", "ray_token", models.CharField(blank=True, db_default="", default="", max_length=64)
        ),
        migrations.AddField(
            "resourcepool",
            "labels",
            models.JSONField(blank=True, db_default=Value({}, models.JSONField()), default=dict),
        ),
        migrations.AddField(
            "resourcepool",
            "device",
            models.CharField(
                blank=True, choices=[("gpu", "Gpu"), ("cpu", "Cpu")], db_default="", default="", max_length=3
            ),
        ),
        migrations.AddField("resourcepool", "autoscales", models.BooleanField(db_default=False, default=False)),
        migrations.AddConstraint(
            "resourcepool",
            models.CheckConstraint(condition=Q(device__in=["", "gpu", "cpu"]), name="pool_device_known"),
        ),
        migrations.AddConstraint(
            "resourcepool",
            models.CheckConstraint(condition=Q(ray_token="") | ~Q(ray_url=""), name="pool_token_has_address"),
        ),
        migrations.CreateModel(
            "RayLook",
            [
                (
                    "pool",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name="look",
                        serialize=False, to="pools.resourcepool",
                    ),
                ),  # fmt: skip
                ("at", models.DateTimeField()),
                ("problem", models.CharField(blank=True, default="", max_length=300)),
                ("seen_at", models.DateTimeField(null=True)),
                ("hosts", models.JSONField(default=list)),
                ("devices", models.PositiveIntegerField(null=True)),
                ("promised", models.PositiveIntegerField(null=True)),
                ("amiss_since", models.DateTimeField(null=True)),
            ],
        ),
        migrations.RunPython(say_what_the_flavor_meant, migrations.RunPython.noop),
    ]
