"""What a driver's loop does, since when it stands still, and since when somebody listens. All of it may be unknown."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0009_fences")]

    operations = [
        migrations.AddField("job", "stalled_since", models.DateTimeField(null=True)),
        migrations.AddField("jobattempt", "turns", models.PositiveBigIntegerField(null=True)),
        migrations.AddField("jobattempt", "moved_at", models.DateTimeField(null=True)),
        migrations.AddField("reconcilelease", "listening_since", models.DateTimeField(null=True)),
        migrations.AddField("reconcilelease", "listened_at", models.DateTimeField(null=True)),
    ]
