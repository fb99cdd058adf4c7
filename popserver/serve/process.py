"""`popmq serve`: one server in this process."""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import signal
import sys
import time
from typing import Any

from popserver.serve.settings import OK, REFUSED, USAGE, read_config


def serve(arguments: argparse.Namespace) -> int:
    started = time.monotonic()
    # Before the imports: imported objects stay, so collecting them only takes time.
    _tune_garbage_collector()
    from popserver import logs
    from popserver.front import sockets

    config = read_config(arguments)
    if config is None:
        return USAGE
    logs.configure(config.log_level, config.log_format)
    sockets.raise_limit()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_run_server(config, started, as_json=arguments.json or config.log_format == "json"))


async def _run_server(config: Any, started: float, *, as_json: bool) -> int:
    from popserver.app import App
    from popserver.database.migrate import HEAD
    from popserver.front.sockets import tell_supervisor
    from popserver.model.errors import PopError

    stopping = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stopping.set)
    app = App(config, own_process=True)
    try:
        await app.start()
    except PopError as error:
        print(f"popmq: {error.sentence}", file=sys.stderr)
        return REFUSED
    assert app.database is not None
    facts = {
        "grpc": app.endpoint,
        "http": app.http_endpoint or "off",
        **({"admin": app.admin_endpoint} if config.admin else {}),
        "tls": config.tls,
        "store": app.database.name,
        "durability": config.durability,
        "schema": HEAD,
        "ready_after_ms": round((time.monotonic() - started) * 1_000),
    }
    words = "popserver ready  " + "  ".join(f"{name}={value}" for name, value in facts.items())
    gc.collect()
    gc.freeze()
    print(json.dumps(facts) if as_json else f"{words}  (RocketMQ 5 protocol)", flush=True)
    tell_supervisor(f"READY=1\nSTATUS={words}")
    await stopping.wait()
    tell_supervisor("STOPPING=1")
    print('{"event": "draining"}' if as_json else "popserver draining", file=sys.stderr, flush=True)
    await app.stop()
    return OK


def _tune_garbage_collector() -> None:
    """Collect less often: a batch makes thousands of short-lived objects."""
    gc.set_threshold(50_000, 20, 100)


def _loop_factory() -> Any:
    """uvloop if it is installed, because it is faster. The `server` extra installs it where there are wheels."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
