"""The options of `popmq serve`."""

from __future__ import annotations

import argparse


def _mib(written: str) -> int:
    """Parse a number of MiB. Raises `argparse.ArgumentTypeError`."""
    if not written.strip().isdecimal():
        raise argparse.ArgumentTypeError(f"'{written}' is not a whole number of MiB; write 64 for 64 MiB")
    return int(written)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=int, help="port to listen on (8081); 0: any free port")
    parser.add_argument(
        "--workers", type=int, metavar="N", help="processes that share the port, to use more cores; on Postgres (1)"
    )
    parser.add_argument(
        "--advertise", metavar="HOST:PORT", help="this server's address for clients of other servers on its Postgres"
    )
    parser.add_argument(
        "--http", metavar="HOST:PORT", help="address of metrics, health and console (127.0.0.1:8082); off: none"
    )
    parser.add_argument(
        "--http-path", metavar="PATH", help="path of the HTTP port behind a proxy, such as /popmq (none: its root)"
    )
    parser.add_argument(
        "--admin", metavar="HOST:PORT", help="address of the administration, which --port then does not serve"
    )
    parser.add_argument(
        "--allow-host",
        metavar="NAME",
        action="append",
        help="a name of the HTTP port besides localhost, such as that of a proxy; may be repeated",
    )
    add_database_url(parser)
    parser.add_argument(
        "--durability", choices=("full", "relaxed"), help="full: a message is on the disk before its OK (full)"
    )
    parser.add_argument(
        "--auto-create",
        action=argparse.BooleanOptionalAction,
        help="create missing topics and groups on first use (on a loopback address only)",
    )
    parser.add_argument(
        "--long-polling",
        action=argparse.BooleanOptionalAction,
        help="off: a pull of a queue waits for at most a second, checked on a beat, whatever it asks for (on)",
    )
    parser.add_argument("--min-invisible", metavar="DURATION", help="shortest invisible duration allowed (10s)")
    parser.add_argument("--retention", metavar="DURATION", help="how long messages are stored (72h); 0s: no limit")
    parser.add_argument(
        "--max-clock-jump",
        metavar="DURATION",
        help="after a longer clock jump or stop, keep old messages for another hour (1h); 0s: no limit",
    )
    parser.add_argument("--max-delay", metavar="DURATION", help="longest delay of a message (40d); 0s: no limit")
    _add_transactions(parser)
    parser.add_argument(
        "--idempotency-window", metavar="DURATION", help="how long idempotency keys are stored (24h); 0s: ignore them"
    )
    parser.add_argument("--drain-timeout", metavar="DURATION", help="at shutdown, how long calls may still run (30s)")
    parser.add_argument(
        "--handover",
        metavar="DURATION",
        help="after popmq server drain or SIGUSR1, how long clients may take to go to the other servers (40s)",
    )
    _add_tls(parser)
    _add_auth(parser)
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"))
    parser.add_argument("--log-format", choices=("console", "json"))


def _add_transactions(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--transaction-timeout", metavar="DURATION", help="time until the first check of an open transaction (6s)"
    )
    parser.add_argument("--transaction-check-interval", metavar="DURATION", help="time between two checks (30s)")
    parser.add_argument(
        "--transaction-checks", metavar="NUMBER", type=int, help="discard the message after this many checks (15)"
    )


def _add_tls(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--grpc-engine",
        choices=("builtin", "grpcio"),
        help="builtin: the server speaks HTTP/2 itself; grpcio: gRPC's library does, with plaintext or TLS on the port,"
        " more processor time and fewer limits (builtin)",
    )
    parser.add_argument(
        "--tls",
        choices=("permissive", "plaintext", "tls"),
        help="permissive: TLS and plaintext on one port (permissive)",
    )
    parser.add_argument("--tls-cert", metavar="FILE", help="certificate chain, PEM (a self-signed certificate)")
    parser.add_argument("--tls-key", metavar="FILE", help="the certificate's key, PEM")
    parser.add_argument(
        "--tls-client-ca", metavar="FILE", help="accept only clients with a certificate of this CA, PEM"
    )
    parser.add_argument(
        "--tls-dir", metavar="FOLDER", help="folder for the self-signed certificate (that of the SQLite file)"
    )
    parser.add_argument(
        "--insecure", action="store_true", default=None, help="listen on a public address without authentication"
    )


def _add_auth(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--auth",
        action=argparse.BooleanOptionalAction,
        help="callers must sign, and may do what policies allow; see popmq acl (no)",
    )
    parser.add_argument(
        "--auth-max-age", metavar="DURATION", help="refuse older signatures; only if all clients sign UTC (0s: accept)"
    )
    parser.add_argument(
        "--max-send-rate", type=int, metavar="N", help="messages per second that a user may send; 0: no limit (0)"
    )
    parser.add_argument(
        "--max-request-rate", type=int, metavar="N", help="requests per second that a user may make; 0: no limit (0)"
    )
    parser.add_argument(
        "--max-incoming", type=_mib, metavar="MIB", help="memory for requests that arrive or are not answered yet (80)"
    )
    parser.add_argument(
        "--max-watches", type=int, metavar="N", help="health watches at one time, and as many reflection streams (1000)"
    )
    parser.add_argument("--max-connections", type=int, metavar="N", help="connections at one time (10000)")
    parser.add_argument(
        "--max-connections-per-address",
        type=int,
        metavar="N",
        help="connections from one address at one time; 0: half of --max-connections (0)",
    )
    parser.add_argument("--max-http-connections", type=int, metavar="N", help="HTTP connections at one time (256)")
    parser.add_argument("--max-admin-connections", type=int, metavar="N", help="connections to --admin (256)")
    parser.add_argument("--max-metric-series", type=int, metavar="N", help="samples of one scrape of /metrics (50000)")
    parser.add_argument(
        "--client-metrics",
        action=argparse.BooleanOptionalAction,
        help="ask clients for their own metrics, and export them too (no)",
    )
    parser.add_argument(
        "--max-client-metric-series", type=int, metavar="N", help="series kept of all clients' metrics (20000)"
    )
    parser.add_argument(
        "--otlp-endpoint", metavar="URL", help="collector that metrics are pushed to, such as http://127.0.0.1:4317"
    )
    parser.add_argument("--otlp-period", metavar="DURATION", help="time between two pushes (60s)")
    parser.add_argument(
        "--metric-unit-suffix",
        action=argparse.BooleanOptionalAction,
        help="names of metrics end with their units, as some exporters write them (no)",
    )
    parser.add_argument(
        "--max-chart-series", type=int, metavar="N", help="groups and topics that have charts; 0: none (1000)"
    )
    parser.add_argument("--alert-webhook", metavar="URL", help="address that is told what needs a person")
    parser.add_argument("--console-url", metavar="URL", help="address of the console, for links in alerts")
    parser.add_argument("--send-backlog", type=_mib, metavar="MIB", help="memory for messages not yet stored (128)")
    parser.add_argument(
        "--max-undelivered", type=_mib, metavar="MIB", help="memory for answers that clients have not read yet (96)"
    )
    parser.add_argument("--max-filter-memory", type=_mib, metavar="MIB", help="memory for filters of receives (64)")
    parser.add_argument("--max-lite-subscriptions", type=int, metavar="N", help="lite topics of all clients (250000)")


def add_database_url(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--database-url", metavar="URL", help="sqlite:///FILE or postgresql://… (sqlite:///popmq.db)")
