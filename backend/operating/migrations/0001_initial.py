from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    dependencies = []
    operations = [
        migrations.CreateModel(
            name="Examination",
            fields=[
                ("name", models.CharField(max_length=20, primary_key=True, serialize=False)),
                ("began_at", models.DateTimeField(null=True)),
                ("ended_at", models.DateTimeField(null=True)),
                ("parts", models.JSONField(default=list)),
            ],
        ),
    ]
