"""A console of a server that is not there, is older, or is no PopMQ: a clear sentence, and what works goes on."""

from __future__ import annotations

import html
import socket
from collections.abc import Iterator
from concurrent import futures
from contextlib import ExitStack, contextmanager
from typing import Any

import grpc
import pytest

import popclient.cli
from popclient import UnsupportedByServer
from popclient.admin import Admin
from popclient.config import ClientConfig
from popconsole.settings import Settings
from popproto.v1 import admin_pb2 as admin
from popproto.v2 import definition_pb2 as pb
from tests.console.site import browsing, csrf_on
from tests.support.admin_server import AdminServer, named

# What the first PopMQ with this service answered.
OLD = frozenset(
    f"/popmq.v1.Admin/{name}"
    for name in (
        "CreateTopic DeleteTopic GetTopic ListTopics CreateGroup DeleteGroup GetGroup ListGroups PeekMessages"
        " GetMessage ListDeadLetters GetDeadLetter GetStatus"
    ).split()
)
NO_CALLS: frozenset[str] = frozenset()


class Relay(grpc.GenericRpcHandler):
    """Gives calls to a newer server, if their names are known here."""

    def __init__(self, newer: grpc.Channel, known: frozenset[str]) -> None:
        self._newer = newer
        self._known = known

    def service(self, call: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        if call.method not in self._known:
            return None
        passed_on: Any = self._newer.unary_unary(call.method)

        def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
            raw: bytes = passed_on(request, metadata=context.invocation_metadata())
            return _older(raw) if call.method.endswith("/GetStatus") else raw

        return grpc.unary_unary_rpc_method_handler(answer)


def _older(raw: bytes) -> bytes:
    """Without the fields that came later."""
    status = admin.GetStatusResponse.FromString(raw)
    for name in ("commit_times", "budgets", "appended", "storage", "servers"):
        status.ClearField(name)
    return status.SerializeToString()


@contextmanager
def relay(endpoint: str, known: frozenset[str]) -> Iterator[str]:
    """The address of a server that knows these calls alone."""
    with ExitStack() as stack:
        newer = stack.enter_context(grpc.insecure_channel(endpoint))
        server = grpc.server(futures.ThreadPoolExecutor(4), handlers=[Relay(newer, known)])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        stack.callback(lambda: server.stop(None).wait())
        yield f"127.0.0.1:{port}"


@pytest.fixture
def free_port() -> Iterator[int]:
    """A port that nothing listens on, and nothing can take."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def read(browser: Any, path: str, status: int = 200) -> str:
    answer = browser.get(path)
    assert answer.status_code == status, (path, answer.text)
    return html.unescape(answer.text)


def test_nothing_listens(free_port: int) -> None:
    with browsing(Settings(ClientConfig(f"127.0.0.1:{free_port}", request_timeout=1.0))) as browser:
        for _ in range(2):
            page = read(browser, "/groups", 502)
            assert "The server does not answer" in page and f"127.0.0.1:{free_port}" in page
        assert read(browser, "/static/console.css")


def test_a_rocketmq_proxy(admin_server: AdminServer) -> None:
    with (
        relay(admin_server.server.endpoint, NO_CALLS) as endpoint,
        browsing(Settings(ClientConfig(endpoint))) as browser,
    ):
        for path in ("/", "/groups/arrivals", "/sign-in"):
            page = read(browser, path, 200 if path == "/sign-in" else 501)
        page = read(browser, "/", 501)
        assert f"the server at {endpoint} has no popmq.v1.Admin; only PopMQ offers it" in page
        data = {"csrf": csrf_on(browser.get("/sign-in").text), "access_key": "root", "secret": "s3cret-key"}
        answer = browser.post("/sign-in", data=data)
        assert (answer.status_code, "has no popmq.v1.Admin" in answer.text) == (501, True)


def test_a_call_of_rocketmqs_admin_names_its_service(admin_server: AdminServer) -> None:
    with relay(admin_server.server.endpoint, NO_CALLS) as endpoint, Admin(endpoint) as admin:
        with pytest.raises(UnsupportedByServer, match=r"no apache\.rocketmq\.v2\.Admin; PopMQ .* PrintThread"):
            admin.print_threads("c1")
        with pytest.raises(UnsupportedByServer, match=r"no popmq\.v1\.Admin; only PopMQ .* ListTopics"):
            admin.list_topics()


@pytest.fixture
def older(admin_server: AdminServer) -> Iterator[Any]:
    """A browser before a console of an older server, whose group `arrivals` holds a message."""
    admin_server.call("CreateTopic", topic=named("flights"), queue_count=1, accept_message_types=[pb.NORMAL])
    admin_server.make_group("arrivals", history="all")
    admin_server.send("flights", "m1", "m2")
    (first, _) = admin_server.receive("arrivals", "flights", 2)
    admin_server.give_up("arrivals", "flights", first)
    with relay(admin_server.server.endpoint, OLD) as endpoint, browsing(Settings(ClientConfig(endpoint))) as browser:
        yield browser


MISSING = "This server does not offer it; a newer PopMQ does."


@pytest.mark.parametrize(
    ("path", "shown", "is_whole"),
    [
        ("/", "arrivals", False),
        ("/groups", "arrivals", True),
        ("/groups/arrivals", "INFLIGHT", False),
        ("/groups/arrivals?tab=queues", "INFLIGHT", False),
        ("/groups/arrivals?tab=members", "INFLIGHT", True),
        ("/groups/arrivals?tab=message-groups", "INFLIGHT", False),
        ("/groups/arrivals?tab=policy", "Settings", True),
        ("/messages?topic=flights", "Find", False),
        ("/messages/m2", "Its life in every group", False),
        ("/dead-letters", "arrivals", False),
        ("/dead-letters/arrivals", "m1", True),
        ("/topics", "flights", True),
        ("/topics/flights", "m2", False),
        ("/scheduled", "Scheduled and half messages", False),
        ("/clients", "Clients", False),
        ("/users", "Users", False),
        ("/server", "sqlite://", True),
    ],
)
def test_an_older_server_is_shown_as_far_as_it_goes(older: Any, path: str, shown: str, is_whole: bool) -> None:
    page = read(older, path)
    assert shown in page
    assert (MISSING in page) == (not is_whole)


def test_an_older_server_refuses_in_a_sentence_what_it_cannot_do(older: Any) -> None:
    data = {"csrf": csrf_on(older.get("/groups/arrivals?tab=policy").text), "confirm": "arrivals", "topic": ""}
    answer = older.post("/groups/arrivals/pause", data=data)
    assert answer.status_code == 501
    assert "is an older PopMQ, which does not offer PauseGroup; update the server" in answer.text


def test_the_console_needs_a_free_port(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert popclient.cli.main(["console", "--http", f"127.0.0.1:{port}"]) == 2
    said = capsys.readouterr().err
    assert f"cannot listen on 127.0.0.1:{port}: address already in use; choose another address with --http" in said


def test_a_name_for_others_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:  # so that the command ends
        command = ["console", "--http", f"127.0.0.1:{taken.getsockname()[1]}"]
        popclient.cli.main(command)
        assert "--allow-host" not in capsys.readouterr().err
        popclient.cli.main([*command, "--allow-host", "mq.example"])
    assert "--allow-host lets others reach this console" in capsys.readouterr().err


@pytest.mark.parametrize("written", ["8082", "here", "127.0.0.1:99999", "127.0.0.1:x"])
def test_the_console_needs_an_address(capsys: pytest.CaptureFixture[str], written: str) -> None:
    assert popclient.cli.main(["console", "--http", written]) == 2
    assert f"--http is '{written}'; write HOST:PORT" in capsys.readouterr().err
