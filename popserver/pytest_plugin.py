"""A broker for your tests: `pop_server` is one per test, in memory, `pop_clock` its clock."""

from __future__ import annotations
