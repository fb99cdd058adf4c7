"""PopMQ's server: a message broker that keeps its state in a SQL database, where you can query it.

`embedded()` starts a broker inside your process, for tests and small programs. `popmq serve` starts one from the
command line. docs/architecture.md describes the rooms of this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "1.0.0rc1"
__all__ = ["EmbeddedBroker", "EmbeddedClock", "__version__", "embedded"]

if TYPE_CHECKING:
    from popserver.in_process import EmbeddedBroker, EmbeddedClock, embedded
else:

    def __getattr__(name: str) -> object:
        # Loaded on first use, because the command line and the migrations import this package without a broker.
        if name not in __all__:
            raise AttributeError(f"module 'popserver' has no attribute {name!r}")
        try:
            from popserver import in_process
        except ModuleNotFoundError as error:
            remedy = f"the server needs more than the client ({error}): pip install 'popmq[server]'"
            raise ImportError(remedy) from error
        return getattr(in_process, name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
