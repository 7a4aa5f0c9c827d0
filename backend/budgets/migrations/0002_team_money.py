from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ('budgets', '0001_initial'),
    ]
    expands = "rows that old code writes keep these rules; a team's own row it draws on for no job, and lists without a name"

    operations = [
        migrations.RemoveConstraint(
            model_name='spendinglimit',
            name='limit_is_of_a_project_or_a_person',
        ),
        migrations.AddConstraint(
            model_name='spendinglimit',
            constraint=models.CheckConstraint(condition=models.Q(('person__isnull', True), ('project__isnull', True), _connector='OR'), name='limit_is_of_one'),
        ),
        migrations.AddConstraint(
            model_name='spendinglimit',
            constraint=models.CheckConstraint(condition=models.Q(('person__isnull', False), ('project__isnull', False), ('unit', 'money'), _connector='OR'), name='limit_of_a_team_is_of_money'),
        ),
        migrations.AddConstraint(
            model_name='spendinglimit',
            constraint=models.UniqueConstraint(condition=models.Q(('person__isnull', True), ('project__isnull', True)), fields=('team',), name='one_limit_per_team'),
        ),
    ]
