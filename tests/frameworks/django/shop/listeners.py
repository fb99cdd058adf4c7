"""What `manage.py popmq_consume` calls."""

from __future__ import annotations

from popclient import ConsumeResult, MessageView


def book(message: MessageView) -> ConsumeResult:
    from tests.frameworks.django.shop.models import Order  # when the applications are loaded

    Order.objects.create(number=int(message.text))
    return ConsumeResult.SUCCESS
