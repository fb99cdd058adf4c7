"""The outbox as a model. A test compares its table with `popclient.sql.outbox`, which the relay reads."""

from __future__ import annotations

from django.db import models


class OutboxMessage(models.Model):
    """A message on its way to the broker. The table has only those that are not sent yet.

    refusal: why the broker never takes it. Correct the row and set it to NULL, or delete the row.
    """

    outbox_id = models.BigAutoField(primary_key=True)
    topic = models.CharField(max_length=255)
    message_id = models.CharField(max_length=255)
    tag = models.TextField(null=True)
    keys = models.TextField(null=True)
    properties = models.TextField(null=True)
    message_group = models.CharField(max_length=63, null=True)
    priority = models.SmallIntegerField(null=True)
    deliver_at_ms = models.BigIntegerField(null=True)
    trace_context = models.TextField(null=True)
    written_at_ms = models.BigIntegerField()
    refusal = models.TextField(null=True)
    body = models.BinaryField()

    class Meta:
        db_table = "popmq_outbox"

    def __str__(self) -> str:
        return f"{self.outbox_id}: {self.message_id} to {self.topic}"
