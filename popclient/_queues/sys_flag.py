"""The bits of a pull's sysFlag (requirement B4)."""

from __future__ import annotations

from enum import IntFlag


class SysFlag(IntFlag):
    """COMMIT_OFFSET: the pull carries progress to commit. SUSPEND: the server may hold it until there is something.
    SUBSCRIPTION: the filter is in the pull. CLASS_FILTER: the filter is a class, which nobody sends any more.
    LITE_PULL: the puller needs no subscription of its group's.
    """

    COMMIT_OFFSET = 1
    SUSPEND = 2
    SUBSCRIPTION = 4
    CLASS_FILTER = 8
    LITE_PULL = 16


def build_sys_flag(
    *,
    commit_offset: bool = False,
    suspend: bool = False,
    subscription: bool = False,
    class_filter: bool = False,
    lite_pull: bool = False,
) -> SysFlag:
    """
    >>> int(build_sys_flag(commit_offset=True, suspend=True))
    3
    """
    chosen = {
        SysFlag.COMMIT_OFFSET: commit_offset,
        SysFlag.SUSPEND: suspend,
        SysFlag.SUBSCRIPTION: subscription,
        SysFlag.CLASS_FILTER: class_filter,
        SysFlag.LITE_PULL: lite_pull,
    }
    flag = SysFlag(0)
    for bit, is_set in chosen.items():
        if is_set:
            flag |= bit
    return flag


def parse_sys_flag(value: int) -> SysFlag:
    """Raises ValueError for bits that nobody has given a meaning."""
    known = sum(SysFlag)
    if value < 0 or value & ~known:
        raise ValueError(f"sys_flag {value} has bits beyond {known}; it is the sum of {[bit.value for bit in SysFlag]}")
    return SysFlag(value)
