"""Runs that several processes share; results come in the order of the plans."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context, parent_process
from multiprocessing.queues import SimpleQueue

import structlog

from proof.simulate.run import Plan, Result, simulate
from proof.simulate.stores import Store

AHEAD = 4  # plans of each process that are given out before their turn
_OWN: list[Store] = []  # the store of this process


def run_all(plans: Iterable[Plan], urls: Sequence[str]) -> Generator[tuple[Plan, Result]]:
    """Run the plans in as many processes as there are databases; closed, it waits for those that run."""
    # Processes that are forked would share a database in memory and its locks.
    context = get_context("spawn")
    databases: SimpleQueue[str] = context.SimpleQueue()
    for url in urls:
        databases.put(url)
    waiting: deque[tuple[Plan, Future[Result]]] = deque()
    left = iter(plans)
    with ProcessPoolExecutor(len(urls), context, _begin, (databases,)) as pool:
        try:
            while True:
                for plan in islice(left, len(urls) * AHEAD - len(waiting)):
                    waiting.append((plan, pool.submit(_run, plan)))
                if not waiting:
                    return
                plan, result = waiting.popleft()
                yield plan, result.result()
        finally:
            pool.shutdown(cancel_futures=True)


def quiet() -> None:
    """Servers that are killed have much to log."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def _begin(databases: SimpleQueue[str]) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    quiet()
    _OWN.append(Store(databases.get()))


def _end_with_parent() -> None:
    """Who is killed cannot end its processes, which would wait for plans for ever."""
    if (parent := parent_process()) is not None:
        parent.join()
        os._exit(1)


def _run(plan: Plan) -> Result:
    try:
        return simulate(plan, _OWN[0])
    except BaseException as error:
        error.add_note(f"in the run of seed {plan.seed} with {plan.steps} steps, {plan.scene}")
        raise
