"""The official Python client sends its metrics to the address that the server's settings name."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from tests.interop.programs import HERE
from tests.metrics.test_exported import scraped, value
from tests.web.conftest import started


async def test_what_an_official_client_measures_is_exported(tmp_path: Path) -> None:
    async with started(f"sqlite:///{tmp_path / 'popmq.db'}", client_metrics=True) as app:
        command = [sys.executable, str(HERE / "clients" / "sender.py"), app.endpoint]
        # The official client writes its log below HOME.
        environment = {**os.environ, "HOME": str(tmp_path)}
        await asyncio.to_thread(subprocess.run, command, env=environment, check=True, timeout=60)
        samples = await scraped(app)
    sends = {"topic": "orders", "invocation_status": "success"}
    assert value(samples, "rocketmq_send_cost_time_count", **sends) == 3
