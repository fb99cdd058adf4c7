"""The project's own table."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    number = models.IntegerField(primary_key=True)

    class Meta:
        db_table = "shop_order"
