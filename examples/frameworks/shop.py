"""FastAPI takes orders, Taskiq brews them, and PopMQ knows the state of each. Start a broker first: popmq serve

    uvicorn examples.frameworks.shop:app --port 8000
    taskiq worker examples.frameworks.shop:broker

    curl --json '{"drink": "tea", "table": 7}' http://127.0.0.1:8000/orders
    curl http://127.0.0.1:8000/orders/ID

The orders of a table are served in order. There is no result backend: the state of an order is that of its message.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from popclient import GiveUp
from popclient.aio import Admin
from popclient.frameworks.taskiq import PopBroker

TOPIC, GROUP = "orders", "kitchen"
broker = PopBroker(topic=TOPIC, group=GROUP)  # ROCKETMQ_ENDPOINTS, or 127.0.0.1:8081


class Order(BaseModel):
    drink: str
    table: int


@broker.task("brew")
async def brew(order: Order) -> None:
    if order.drink == "water":
        raise GiveUp("water is not brewed")  # a dead letter at once; another exception would be tried again
    print(f"{order.drink} for table {order.table}", flush=True)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    await broker.startup()
    yield
    await broker.shutdown()


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=202)
async def take(order: Order) -> str:
    task = await brew.kicker().with_labels(message_group=f"table-{order.table}").kiq(order)
    return task.task_id


@app.get("/orders/{task_id}")
async def state(task_id: str) -> str:
    async with Admin() as admin:
        for found in (await admin.find_messages(topic=TOPIC, key=task_id)).messages:
            facts = await admin.get_message(found.message_id, TOPIC)
            return next((each.state for each in facts.states if each.group == GROUP), "READY")
    raise HTTPException(404)
