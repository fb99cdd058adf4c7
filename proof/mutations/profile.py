"""A plugin of pytest in place of the project's conftest.py, which imports the whole server.

Examples are the same in each run, so that a mutant that survives once survives again.
"""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings

NAME = "mutations"
# Shrinking a failure helps nobody here: the first failure kills the mutant.
PHASES = (Phase.explicit, Phase.generate, Phase.target)

settings.register_profile(
    NAME, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None, phases=PHASES
)
settings.load_profile(NAME)
