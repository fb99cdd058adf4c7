"""Redrives that run in the console: each sends a plan's messages back at its rate, until it is done or stopped."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Final

from popclient.admin import RedrivePlan
from popclient.aio import Admin, ClientConfig
from popclient.errors import PopError

JOBS_MAX: Final = 50
_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Job:
    """One running redrive. failure: why it ended early, in a sentence."""

    plan: RedrivePlan
    rate: float | None
    task: asyncio.Task[None] | None = None
    failure: str = ""

    @property
    def is_running(self) -> bool:
        return self.task is not None and not self.task.done()


class Jobs:
    """All redrives of a console. The plan is in the server, so what stops here goes on with the same plan."""

    def __init__(self) -> None:
        self._by_plan: dict[str, Job] = {}

    def find(self, plan_id: str) -> Job | None:
        return self._by_plan.get(plan_id)

    def start(self, config: ClientConfig, plan: RedrivePlan, rate: float | None) -> Job:
        """Run the plan, also after its visitor's session. A plan that runs already goes on as it is."""
        job = self._by_plan.get(plan.plan_id)
        if job is not None and job.is_running:
            return job
        for plan_id in [name for name, each in self._by_plan.items() if not each.is_running][: -JOBS_MAX or None]:
            del self._by_plan[plan_id]
        job = self._by_plan[plan.plan_id] = Job(plan, rate)
        job.task = asyncio.create_task(self._run(config, job))
        return job

    async def stop(self, plan_id: str) -> None:
        """Stop the redrive after its running step; the rest of the plan stays planned."""
        job = self._by_plan.get(plan_id)
        if job is not None and job.task is not None:
            job.task.cancel()
            await asyncio.gather(job.task, return_exceptions=True)

    async def close(self) -> None:
        for plan_id in list(self._by_plan):
            await self.stop(plan_id)

    async def _run(self, config: ClientConfig, job: Job) -> None:
        try:
            async with Admin(config) as admin:
                async for step in admin.run_redrive(job.plan.plan_id, rate=job.rate):
                    job.plan = step.plan
        except PopError as error:
            job.failure = error.sentence
        except Exception as error:  # noqa: BLE001 - whatever it is, the page of the plan says it
            _log.exception("redrive %s has failed", job.plan.plan_id)
            job.failure = f"The console has failed with {type(error).__name__}; its log says more."
