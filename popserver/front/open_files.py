"""How many connections a process has files for: too many must never keep the database from opening its own."""

from __future__ import annotations

import resource

RESERVED = 200  # for the database, the log, and what libraries open
LIMIT_MAX = 1 << 20


def raise_limit() -> None:
    """Allow this process as many open files as it may allow itself."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = LIMIT_MAX if hard == resource.RLIM_INFINITY else min(hard, LIMIT_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            # Some systems promise more than they give; then what there is must do.
            return


def connections_max(files_each: int) -> int:
    """How many connections there is room for, if each of them takes so many files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = LIMIT_MAX if soft == resource.RLIM_INFINITY else min(soft, LIMIT_MAX)
    return max(files - RESERVED, files // 2) // files_each
