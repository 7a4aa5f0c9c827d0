from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("pools", "0003_evaluations_hold_replicas")]

    operations = [
        migrations.AddField("resourcepool", "device_gb", models.PositiveIntegerField(blank=True, null=True)),
    ]
