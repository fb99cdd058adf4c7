"""Libraries that replace the threads of a process, as gevent does in workers of gunicorn or Celery.

gRPC's asyncio polls in a thread. In place of one it would get a greenlet there, and the process would wait without end.
"""

from __future__ import annotations

import sys
from typing import Final

_WAY_OUT: Final = (
    "{library} has replaced {what} of this process, and clients need the real ones: run it with threads instead"
    " (gunicorn: --worker-class gthread, Celery: --pool threads), or keep them with {call} (docs/processes.md)"
)
_GEVENT: Final = "monkey.patch_all(thread=False, select=False, subprocess=False, os=False, signal=False)"
_EVENTLET: Final = "eventlet.monkey_patch(thread=False)"


def require_real_threads() -> None:
    """Raises RuntimeError in a process that gevent or eventlet has patched."""
    # Neither is imported here: who has patched has imported it.
    gevent = sys.modules.get("gevent.monkey")
    if gevent is not None and any(map(gevent.is_module_patched, ("threading", "select"))):
        raise RuntimeError(_WAY_OUT.format(library="gevent", what="threads or select", call=_GEVENT))
    eventlet = sys.modules.get("eventlet.patcher")
    if eventlet is not None and eventlet.is_monkey_patched("thread"):
        raise RuntimeError(_WAY_OUT.format(library="eventlet", what="threads", call=_EVENTLET))
