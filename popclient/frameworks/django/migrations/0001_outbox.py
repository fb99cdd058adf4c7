"""The outbox table."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    """Creates `popmq_outbox`."""

    initial = True
    operations = (
        migrations.CreateModel(
            name="OutboxMessage",
            fields=[
                ("outbox_id", models.BigAutoField(primary_key=True, serialize=False)),
                ("topic", models.CharField(max_length=255)),
                ("message_id", models.CharField(max_length=255)),
                ("tag", models.TextField(null=True)),
                ("keys", models.TextField(null=True)),
                ("properties", models.TextField(null=True)),
                ("message_group", models.CharField(max_length=63, null=True)),
                ("priority", models.SmallIntegerField(null=True)),
                ("deliver_at_ms", models.BigIntegerField(null=True)),
                ("trace_context", models.TextField(null=True)),
                ("written_at_ms", models.BigIntegerField()),
                ("refusal", models.TextField(null=True)),
                ("body", models.BinaryField()),
            ],
            options={"db_table": "popmq_outbox"},
        ),
    )
