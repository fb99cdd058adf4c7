"""A program that uses popclient, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time

# Half a second for the goodbye, on a machine that may be busy; whoever waits for a server or a poll takes 60 s.
AT_ONCE_S = 15


def run(script: str, *arguments: str) -> tuple[subprocess.CompletedProcess[str], float]:
    """Runs it in a process of its own; the time counts from its word "ending"."""
    command = [sys.executable, "-c", textwrap.dedent(script), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    took = time.time() - float(ended.stdout.split()[-1]) if ended.stdout.split() else 99.0
    return ended, took
