"""The shapes of rows of the table `delivery`."""

from __future__ import annotations

from popserver.database.schema import delivery
from popserver.delivery.deliveries import DeliveryRow, NewDelivery

COLUMNS = [each.name for each in delivery.columns]


def test_a_new_row_has_all_columns_in_the_order_of_the_table() -> None:
    assert list(NewDelivery._fields) == [name for name in COLUMNS if name != "uncounted"]


def test_a_row_that_is_read_has_its_columns_in_the_order_of_the_table() -> None:
    assert list(DeliveryRow._fields) == [name for name in COLUMNS if name in DeliveryRow._fields]
