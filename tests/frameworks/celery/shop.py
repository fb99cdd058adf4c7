"""A Celery application for the tests; its tasks note in a file what they do."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from celery import Celery, Task
from celery.exceptions import Reject
from kombu import Queue

import popclient.frameworks.kombu  # noqa: F401  popmq:// in URLs

FOLDER = Path(os.environ.get("SHOP_FOLDER", "."))
NOTES = FOLDER / "notes"

app = Celery("shop", broker=os.environ.get("SHOP_BROKER", "popmq://127.0.0.1:8081"))
app.conf.update(
    broker_connection_retry_on_startup=True,
    broker_transport_options={"group": "shop", "invisible_duration": float(os.environ.get("SHOP_HOLD", "2"))},
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_queues=[Queue("celery"), Queue("urgent", max_priority=9)],
    worker_hijack_root_logger=False,
)


def note(task: Task[Any, Any], word: str) -> None:
    """A line with the word, the process, and whether the broker has delivered the task before."""
    redelivered = int(task.request.delivery_info["redelivered"])
    with NOTES.open("a") as notes:
        notes.write(f"{word} {os.getpid()} {os.getppid()} {redelivered}\n")


@app.task(bind=True)
def quick(self: Task[Any, Any], word: str) -> None:
    note(self, word)


@app.task(bind=True)
def gated(self: Task[Any, Any], word: str) -> None:
    """Ends when the file of this name is there."""
    note(self, f"begin-{word}")
    while not (FOLDER / word).exists():
        time.sleep(0.02)
    note(self, f"end-{word}")


@app.task(bind=True)
def sender(self: Task[Any, Any], word: str) -> None:
    """Sends another task from the child."""
    note(self, f"send-{word}")
    quick.delay(word)


@app.task(bind=True)
def dying(self: Task[Any, Any], word: str) -> None:
    """Its child is killed."""
    note(self, word)
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(bind=True)
def refusing(self: Task[Any, Any], word: str) -> None:
    note(self, word)
    raise Reject("this order has no table", requeue=False)


@app.task(bind=True, acks_on_failure_or_timeout=False)
def failing(self: Task[Any, Any], word: str) -> None:
    note(self, word)
    raise ValueError("no such table")


@app.task(bind=True, max_retries=1)
def again(self: Task[Any, Any], word: str) -> None:
    """Fails once; the second try comes after 1 s."""
    note(self, f"{word}-{self.request.retries}")
    if not self.request.retries:
        raise self.retry(countdown=1)
