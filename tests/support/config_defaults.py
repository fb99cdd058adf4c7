"""Other defaults for the clients of the tests."""

from __future__ import annotations

import inspect
from typing import Any

from popclient import ClientConfig


def defaults_with(**changed: Any) -> tuple[Any, ...]:
    """What `ClientConfig.__init__.__defaults__` is to be: the defaults it has now, but for these."""
    parameters = inspect.signature(ClientConfig.__init__).parameters.values()
    now = {each.name: each.default for each in parameters if each.default is not each.empty}
    assert changed.keys() <= now.keys()
    return tuple((now | changed).values())
