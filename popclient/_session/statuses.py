"""What a call means that ended without an answer of the server: by a gRPC status, or by an HTTP status of a proxy.

A RocketMQ server puts its own failures into the answer (`errors.EXCEPTION_OF`). A gRPC status comes from the layers
below, and an HTTP status from a proxy: servers of gRPC answer HTTP 200 alone.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import grpc

from popclient.errors import (
    BadRequest,
    Forbidden,
    NotFound,
    PayloadTooLarge,
    PopError,
    PreconditionFailed,
    PropertiesTooLarge,
    RefusedByProxy,
    RequestTimeout,
    ServerError,
    TooManyRequests,
    Unauthorized,
    Unreachable,
    UnsupportedByServer,
)

# Every status but OK; a test compares with the enum.
ERROR_OF_GRPC: Final[dict[grpc.StatusCode, type[PopError]]] = {
    grpc.StatusCode.CANCELLED: Unreachable,
    grpc.StatusCode.UNKNOWN: ServerError,
    grpc.StatusCode.INVALID_ARGUMENT: BadRequest,
    grpc.StatusCode.DEADLINE_EXCEEDED: Unreachable,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.ALREADY_EXISTS: PreconditionFailed,
    grpc.StatusCode.PERMISSION_DENIED: Forbidden,
    grpc.StatusCode.RESOURCE_EXHAUSTED: TooManyRequests,
    grpc.StatusCode.FAILED_PRECONDITION: PreconditionFailed,
    grpc.StatusCode.ABORTED: ServerError,
    grpc.StatusCode.OUT_OF_RANGE: BadRequest,
    grpc.StatusCode.UNIMPLEMENTED: UnsupportedByServer,
    grpc.StatusCode.INTERNAL: ServerError,
    grpc.StatusCode.UNAVAILABLE: Unreachable,
    grpc.StatusCode.DATA_LOSS: ServerError,
    grpc.StatusCode.UNAUTHENTICATED: Unauthorized,
}


class ProxyAnswer(NamedTuple):
    """What an HTTP status means: the error, the reason, and what helps."""

    kind: type[PopError]
    meaning: str


_ELSEWHERE: Final = "name the port of the server for clients (8081), or have the proxy pass gRPC on to it"
ERROR_OF_HTTP: Final[dict[int, ProxyAnswer]] = {
    400: ProxyAnswer(RefusedByProxy, f"it does not take this call for a valid one; {_ELSEWHERE}"),
    401: ProxyAnswer(
        Unauthorized,
        "it wants a login of its own, which clients of RocketMQ do not have; let it pass calls on without one",
    ),
    403: ProxyAnswer(Forbidden, "its rules deny this client or this path; allow both there"),
    404: ProxyAnswer(RefusedByProxy, f"it has nothing at the paths of gRPC; {_ELSEWHERE}"),
    405: ProxyAnswer(RefusedByProxy, f"it allows no POST there; {_ELSEWHERE}"),
    407: ProxyAnswer(RefusedByProxy, "it wants a login of its own; name the server itself, or set no_proxy"),
    408: ProxyAnswer(RequestTimeout, "the request took too long to arrive; raise its time-out (client_body_timeout)"),
    411: ProxyAnswer(RefusedByProxy, "it wants a length of each request, which streams have not; have it pass gRPC on"),
    413: ProxyAnswer(
        PayloadTooLarge,
        "the request is larger than its limit; raise that to 8 MiB or more (nginx: client_max_body_size, 1m by"
        " default), or send smaller messages",
    ),
    414: ProxyAnswer(RefusedByProxy, f"a path of gRPC is too long for it; {_ELSEWHERE}"),
    415: ProxyAnswer(RefusedByProxy, f"it does not take application/grpc; {_ELSEWHERE}"),
    421: ProxyAnswer(
        RefusedByProxy, "it does not serve this host name; name the host in its configuration, or in the endpoints"
    ),
    426: ProxyAnswer(RefusedByProxy, "it wants another protocol; have it speak HTTP/2 and pass gRPC on"),
    429: ProxyAnswer(TooManyRequests, "it limits the rate or the number of calls (nginx: limit_req, limit_conn)"),
    431: ProxyAnswer(
        PropertiesTooLarge,
        "the headers are larger than its limit; raise that (nginx: large_client_header_buffers), or shorten the"
        " session token or namespace",
    ),
    500: ProxyAnswer(ServerError, "it has failed; see its log"),
    501: ProxyAnswer(RefusedByProxy, f"it does not pass such calls on; {_ELSEWHERE}"),
    502: ProxyAnswer(
        Unreachable, "it reaches no server behind it; check whether the server runs, and the log of the proxy"
    ),
    503: ProxyAnswer(Unreachable, "it has no server for the call at the moment; see its log"),
    504: ProxyAnswer(
        Unreachable,
        "the server did not answer it in time; its time-out must be longer than a poll of 20 s (nginx:"
        " grpc_read_timeout)",
    ),
    505: ProxyAnswer(RefusedByProxy, "it speaks no HTTP/2; have it speak HTTP/2 and pass gRPC on"),
}
_OF_HUNDREDS: Final = {
    3: ProxyAnswer(RefusedByProxy, f"it redirects the call, which gRPC does not follow; {_ELSEWHERE}"),
    4: ProxyAnswer(RefusedByProxy, f"it refuses the call; {_ELSEWHERE}"),
    5: ProxyAnswer(ServerError, "it has failed; see its log"),
}
_HTTP: Final = re.compile(r"http2 header with status: (\d{3})")
# When a proxy answers a stream, gRPC's library often reports this and not the HTTP status (grpcio 1.85 behind nginx: of
# up to half of the streams). Servers of gRPC end an answer with headers, never with data.
_BY_DATA: Final = "Data frame with END_STREAM flag received"
_NOT_WRITTEN: Final = "Internal error from Core"


def is_unsaid(details: str) -> bool:
    """Has gRPC's library lost the reason why a stream has ended? A call with one answer still tells it."""
    return details == _NOT_WRITTEN or _BY_DATA in details


def translated(code: grpc.StatusCode, details: str) -> PopError:
    """The error for a gRPC status, in the server's own words, or for the HTTP status of a proxy that is behind it."""
    if (found := _HTTP.search(details)) and found[1] != "200":
        return of_proxy(int(found[1]))
    if _BY_DATA in details:
        return Unreachable(
            "a proxy in front of the server answers in its place; check whether the server runs, and the log of the"
            " proxy",
            name=code.name,
        )
    # Servers also say so of an answer: what is larger than the client takes.
    kind = PayloadTooLarge if "larger than max" in details else ERROR_OF_GRPC.get(code, ServerError)
    return kind(f"gRPC {code.name.lower()}: {details}", name=code.name)


def of_proxy(status: int) -> PopError:
    """The error for an HTTP status; gRPC's library has no more of the answer."""
    kind, meaning = ERROR_OF_HTTP.get(status) or _OF_HUNDREDS.get(status // 100, _OF_HUNDREDS[4])
    return kind(f"a proxy in front of the server answers HTTP {status}: {meaning}", name=f"HTTP {status}")
