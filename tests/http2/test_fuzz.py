"""Random and damaged bytes never raise anything unexpected, and never make a connection keep more than it may."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.http2.fuzz import fuzz, fuzz_blocks

# CI has 5,000 inputs, `make fuzz` many others, `make test-long` a million more.
MANY = (pytest.mark.slow, pytest.mark.timeout(3_600))


@pytest.mark.parametrize(
    ("judge", "seeds"),
    [
        pytest.param(fuzz, range(2_000), id="conversations"),
        pytest.param(fuzz_blocks, range(3_000), id="header-blocks"),
        pytest.param(fuzz, range(2_000, 502_000), id="many-conversations", marks=MANY),
        pytest.param(fuzz_blocks, range(3_000, 503_000), id="many-header-blocks", marks=MANY),
    ],
)
def test_any_bytes(judge: Callable[[int], None], seeds: range) -> None:
    for seed in seeds:
        try:
            judge(seed)
        except Exception as error:
            raise AssertionError(f"{judge.__name__}({seed}) raises {error!r}") from error
