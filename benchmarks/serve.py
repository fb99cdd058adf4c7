"""Only `popmq serve`, without the rest of the command line: the server process of the benchmarks."""

from __future__ import annotations

import argparse
import sys

from popserver.cli import add_commands


def serve(arguments: list[str]) -> int:
    """Run the server until SIGTERM; the ready line is one JSON object."""
    parser = argparse.ArgumentParser(prog="popmq")
    parser.add_argument("--json", action="store_true")
    add_commands(parser.add_subparsers(required=True))
    # TLS and plaintext on one port, as users get it by default. A later option wins.
    always = ["--port", "0", "--log-level", "warning"]
    parsed = parser.parse_args(["--json", "serve", *always, *arguments])
    return int(parsed.run(parsed))


if __name__ == "__main__":
    sys.exit(serve(sys.argv[1:]))
