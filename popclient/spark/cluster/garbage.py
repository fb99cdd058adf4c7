"""What the garbage collector looks at in a worker of Spark.

PySpark's daemon collects all garbage after each task. With the modules of a reader, a collection takes 30 to 50 ms,
which is more than a small task itself. Modules live as long as their process, so the collector need not look at them.
"""

from __future__ import annotations

import gc
import sys
from itertools import count
from typing import Final

_USES: Final = count()
_SECOND: Final = 1


def keep_out_modules() -> None:
    """Takes what is alive out of garbage collection, at the second use in a process: then all modules are imported.

    Once only: what a later task leaves behind is collected. Elsewhere than in PySpark's daemon nothing changes.
    """
    if next(_USES) == _SECOND and _is_worker():
        gc.freeze()


def _is_worker() -> bool:
    spec = sys.modules["__main__"].__spec__
    return spec is not None and spec.name == "pyspark.daemon"
