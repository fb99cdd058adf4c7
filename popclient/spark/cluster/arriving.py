"""Functions that run in an executor before PopMQ is known to be installed there.

Spark's pickler sends them by value. So they import nothing of PopMQ at the top, and refer to nothing outside of
themselves.
"""

from __future__ import annotations

from typing import Any


def arrive(pickled: bytes, version: str, way_out: str) -> Any:
    """Makes the reader or writer that the driver has sent, from its class and its attributes.

    Raises `ModuleNotFoundError` and `ImportError` with this machine, its Python and the way out, if packages are
    missing or cannot be imported, or PopMQ is not of the driver's version.
    """
    import pickle
    import platform
    import sys

    python = f"the executor on {platform.node()} runs {sys.executable} (Python {platform.python_version()})"
    try:
        from popclient._version import VERSION

        if version == VERSION:
            from popclient.spark.cluster.garbage import keep_out_modules

            keep_out_modules()
            kind, attributes = pickle.loads(pickled)  # noqa: S301  from the driver, as all that Spark runs
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            f"{python} without the module {missing.name!r}; {way_out}", name=missing.name
        ) from None
    except Exception as error:  # such as that of gRPC's and protobuf's generated modules, for another version of these
        reason = f"{type(error).__name__}: {error}"
        raise ImportError(f"{python}, which cannot import PopMQ's modules ({reason}); {way_out}") from error
    if version != VERSION:
        raise ImportError(f"{python} with PopMQ {VERSION}, and the driver has {version}; {way_out}")
    made = kind.__new__(kind)
    vars(made).update(attributes)
    return made


def inspect(packages: tuple[str, ...]) -> dict[str, str | None]:
    """The facts of this executor: host, process, python, python_version, and the versions of packages, None for none.

    process: the one that has started this one, which is another one in each executor of a host.
    """
    import os
    import platform
    import sys
    from importlib import metadata

    import pyspark

    try:
        from popclient._version import VERSION
    except ModuleNotFoundError:
        popmq = None
    else:
        popmq = VERSION

    def version_of(package: str) -> str | None:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            return None

    return {
        "host": platform.node(),
        "process": str(os.getppid()),
        "python": sys.executable,
        "python_version": platform.python_version(),
        "pyspark": pyspark.__version__,
        "popmq": popmq,
        **{package: version_of(package) for package in packages},
    }
