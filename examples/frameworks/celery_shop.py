"""Celery over PopMQ. Start a broker first: popmq serve

celery --app examples.frameworks.celery_shop worker --concurrency 2    # a terminal
python -m examples.frameworks.celery_shop                              # another one
"""

from __future__ import annotations

import os

from celery import Celery, Task
from celery.exceptions import Reject

import popclient.frameworks.kombu  # noqa: F401  popmq:// in URLs

app = Celery("shop", broker=os.environ.get("BROKER_URL", "popmq://127.0.0.1:8081"))
app.conf.broker_transport_options = {"group": "shop"}
app.conf.task_acks_late = True  # acked when the task has ended
app.conf.task_reject_on_worker_lost = True  # a killed child: again, until the attempts of the group are used up


@app.task(name="send_invoice", bind=True, max_retries=3)
def send_invoice(self: Task[..., None], order: int, amount: str) -> None:
    """Fails the first time; the second try waits in the server."""
    if order < 0:
        raise Reject(f"order {order} does not exist", requeue=False)  # a dead letter at once
    if not self.request.retries:
        raise self.retry(countdown=1)
    print(f"invoice for order {order}: {amount}")


if __name__ == "__main__":
    send_invoice.delay(42, "12.50")
    send_invoice.apply_async((43, "8.00"), countdown=2)  # waits in the server
    send_invoice.apply_async((42, "3.00"), message_group="order-42")
    send_invoice.delay(-1, "0.00")
