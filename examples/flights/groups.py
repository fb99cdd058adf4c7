"""The two groups that read the flights, and what each is promised."""

from __future__ import annotations

ARRIVALS = "arrivals"
MAX_ATTEMPTS = 3
HOLD_S = 5.0  # how long a consumer holds a flight
AGAIN_S = 1.0  # how long a failed flight waits

RADAR = "radar"
RADAR_HOLD_S = 15
