"""The HTTP port: where it listens, what it takes from callers, and what it does without."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from structlog.testing import capture_logs

from popport import bodies, connections, serving
from popport.addresses import is_loopback, network_of
from popserver import __version__
from popserver.app import App
from popserver.config import Config, GivenConfig
from popserver.web import mounts, readers, server
from popserver.web.mounts import MountContext
from tests.support.http_client import PATIENCE_S, HttpAnswer, answer, ask, connect, get
from tests.support.server_process import refused, served
from tests.support.waiting import eventually
from tests.web.conftest import started

PATHS = ["/livez", "/readyz"]
SIGNED = {"auth": True, "admin_access_key": "root", "admin_secret": "a-long-secret-of-the-admin"}


async def test_without_packages_the_root_lists_what_there_is(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "installed", list)
    async with started(sqlite_url) as app:
        page = await get(app.http_endpoint, "/")
        assert page.status == 200
        assert all(path in page.text for path in PATHS)
        unknown = await get(app.http_endpoint, "/no/such")
        assert (unknown.status, "/no/such" in unknown.text, "/readyz" in unknown.text) == (404, True, True)
        assert (await ask(app.http_endpoint, "POST /readyz HTTP/1.1", {"content-length": "0"})).status == 405


async def test_the_ready_line_names_the_port_and_signals_still_stop_the_server(sqlite_url: str) -> None:
    async with served(sqlite_url, "--http", "127.0.0.1:0", "--tls", "plaintext") as process:
        http = process.ready_line.partition("http=")[2].split()[0]
        assert (await get(http, "/readyz")).status == 200
        assert await process.stop() == 0


async def test_off_is_off(sqlite_url: str) -> None:
    async with started(sqlite_url, http="off") as app:
        assert app.http_endpoint == ""


async def test_an_embedded_broker_has_no_http(sqlite_url: str) -> None:
    assert GivenConfig().http == "off"
    assert Config.model_fields["http"].default == "127.0.0.1:8082"


@pytest.mark.parametrize("address", ["8082", "localhost", "127.0.0.1:99999", "", "a b:1"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match=r"is not HOST:PORT with a port from 0 to 65535"):
        GivenConfig(http=address)


def test_a_port_in_use_is_a_sentence(sqlite_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        at = f"127.0.0.1:{taken.getsockname()[1]}"
        said = refused(sqlite_url, "--http", at)
    assert said.returncode == 1
    assert said.stderr.startswith(f"popmq: cannot listen for HTTP on {at} (Address already in use)")
    assert "--http HOST:PORT" in said.stderr
    assert said.stderr.count("\n") == 1


async def test_a_server_goes_on_if_another_has_the_usual_port(sqlite_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:

        class Usual(GivenConfig):
            http: str = f"127.0.0.1:{taken.getsockname()[1]}"

        app = App(Usual(database_url=sqlite_url, port=0, tls="plaintext"))
        with capture_logs() as said:
            await app.start()
        await app.stop()
    assert app.http_endpoint == ""
    (line,) = [each for each in said if "over HTTP" in each["event"]]
    assert "--http" in line["reason"]


def test_a_public_address_needs_users(sqlite_url: str) -> None:
    said = refused(sqlite_url, "--http", "0.0.0.0:0")
    assert said.returncode == 1
    assert "will not serve HTTP on 0.0.0.0" in said.stderr
    assert "--auth" in said.stderr


async def test_on_a_public_port_strangers_read_no_names_and_no_reasons(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "is_loopback", lambda _: False)
    async with started(sqlite_url, http="0.0.0.0:0", **SIGNED) as app:
        at = app.http_endpoint.replace("0.0.0.0", "127.0.0.1")
        refused = await get(at, "/metrics")
        assert (refused.status, refused.headers["www-authenticate"]) == (401, "bearer")
        assert "POPMQ_METRICS_TOKEN" in refused.text
        assert (await get(at, "/readyz")).document == {"ready": True}
        assert (await get(at, "/livez")).document == {"live": True}
        monkeypatch.undo()
        assert (await get(at, "/metrics")).status == 200  # a caller of this machine
        assert (await get(at, "/readyz")).document["checks"]


async def test_with_a_token_only_those_who_have_it_read_names_and_reasons(sqlite_url: str) -> None:
    async with started(sqlite_url, metrics_token="the-token", **SIGNED) as app:
        assert (await get(app.http_endpoint, "/metrics", authorization="Bearer the-token")).status == 200
        assert (await get(app.http_endpoint, "/readyz", authorization="Bearer the-token")).document["checks"]
        for wrong in ("", "the-token", "Bearer the-toke", "Bearer the-token2", "Basic the-token", "Bearer \xff"):
            assert (await get(app.http_endpoint, "/metrics", authorization=wrong)).status == 401, wrong
            assert (await get(app.http_endpoint, "/readyz", authorization=wrong)).document == {"ready": True}


async def test_who_trusts_the_network_shows_all(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "is_loopback", lambda _: False)
    async with started(sqlite_url, http="0.0.0.0:0", insecure=True) as app:
        assert (await get(app.http_endpoint.replace("0.0.0.0", "127.0.0.1"), "/metrics")).status == 200


async def test_a_page_of_the_internet_cannot_read_it_through_its_own_name(web: App) -> None:
    port = web.http_endpoint.rpartition(":")[2]
    for name in (f"localhost:{port}", f"[::1]:{port}", "127.0.0.1", "mq.localhost"):
        assert (await get(web.http_endpoint, "/metrics", host=name)).status == 200, name
    for path in ("/metrics", "/", "/no/such"):
        foreign = await get(web.http_endpoint, path, host=f"evil.example:{port}")
        assert foreign.status == 421
        assert "evil.example" in foreign.text
    # Whether it runs is for everybody, the reasons are not.
    assert (await get(web.http_endpoint, "/readyz", host=f"evil.example:{port}")).document == {"ready": True}
    assert (await get(web.http_endpoint, "/readyz", host=f"localhost:{port}")).document["checks"]


@pytest.mark.parametrize(("options", "warned"), [({}, True), (SIGNED, False), ({"insecure": True}, False)])
async def test_a_name_for_a_server_without_users_is_warned_of(
    sqlite_url: str, options: dict[str, Any], warned: bool
) -> None:
    with capture_logs() as said:
        async with started(sqlite_url, allow_host=["mq.example"], **options):
            pass
    assert any("--auth" in str(each.get("reason")) and each.get("hosts") for each in said) is warned


async def test_a_name_can_be_allowed(sqlite_url: str) -> None:
    async with started(sqlite_url, allow_host=["MQ.example"]) as app:
        for name, status in (("mq.example", 200), ("mq.example:443", 200), ("evil.example", 421)):
            assert (await get(app.http_endpoint, "/metrics", host=name)).status == status, name


@pytest.mark.parametrize("name", ["https://mq.example", "mq.example:443", ""])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is no name of a host"):
        GivenConfig(allow_host=(name,))


def test_allowed_names_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPMQ_ALLOW_HOST", "mq.example, www.example")
    assert Config().allow_host == ("mq.example", "www.example")


async def test_a_public_port_has_any_name(sqlite_url: str) -> None:
    async with started(sqlite_url, http="0.0.0.0:0", insecure=True) as app:
        at = app.http_endpoint.replace("0.0.0.0", "127.0.0.1")
        assert (await get(at, "/livez", host="mq-0.mq.svc")).status == 200


# What callers may take.


async def test_a_large_head_is_refused(web: App) -> None:
    reader, writer = await connect(web.http_endpoint)
    writer.write(b"GET /livez HTTP/1.1\r\nx: " + b"y" * serving.HEAD_BYTES_MAX)
    assert (await answer(reader, writer)).status == 400


@pytest.mark.parametrize("headers", [{"content-length": str(1 << 40)}, {"transfer-encoding": "chunked"}], ids=str)
async def test_a_large_body_is_refused(web: App, headers: dict[str, str]) -> None:
    body = b"%x\r\n%b\r\n" % (bodies.BODY_BYTES_MAX + 1, bytes(bodies.BODY_BYTES_MAX + 1))
    refused = await ask(
        web.http_endpoint, "POST /livez HTTP/1.1", headers, body if "transfer-encoding" in headers else b""
    )
    assert refused.status == 413
    assert str(bodies.BODY_BYTES_MAX) in refused.text
    assert web.broker.engine.budgets["HTTP requests"].used == 0


async def test_what_is_no_request_after_a_head_ends_the_connection(web: App) -> None:
    """The answer to a HEAD has no body, and so the refusal of what follows has none."""
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, failure: failures.append(failure))
    reader, writer = await connect(web.http_endpoint)
    writer.write(b"HEAD /livez HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nno chunk\r\n")
    async with asyncio.timeout(PATIENCE_S):
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
    writer.close()
    assert failures == []


async def test_bodies_share_a_budget(web: App) -> None:
    budget = web.broker.engine.budgets["HTTP requests"]
    assert budget.take(budget.limit)
    refused = await _post(web, bodies.BODY_BYTES_FREE + 1)
    assert refused.status == 503
    assert "--max-http-connections" in refused.text
    assert (await _post(web, bodies.BODY_BYTES_FREE)).status == 405
    budget.give_back(budget.limit)


async def test_who_stalls_in_large_bodies_keeps_no_small_ones_out_and_no_other_address(web: App) -> None:
    budget = web.broker.engine.budgets["HTTP requests"]
    size = bodies.BODY_BYTES_MAX
    enough = budget.limit // size + 2  # of one address, to fill all room
    stalled = [await _connect_from("127.0.0.2", web) for _ in range(enough)]
    for _, writer in stalled:
        writer.write(f"POST /livez HTTP/1.1\r\nhost: localhost\r\ncontent-length: {size}\r\n\r\n".encode())
        writer.write(bytes(size - 1))
    await eventually(lambda: _refused(web, 1), "a refusal", within_s=30)
    assert (await _post(web, size)).status == 405
    small = await _connect_from("127.0.0.2", web)
    small[1].write(b"POST /livez HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello")
    assert (await answer(*small)).status == 405
    for _, writer in stalled:
        writer.close()
    await eventually(lambda: _has_bodies(web, 0), "no bytes", within_s=30)


async def _post(app: App, size: int) -> HttpAnswer:
    return await ask(app.http_endpoint, "POST /livez HTTP/1.1", {"content-length": str(size)}, bytes(size))


async def _refused(app: App, at_least: int) -> bool:
    return app.broker.engine.budgets["HTTP requests"].refused >= at_least


async def test_a_chunked_body_takes_room_whatever_length_it_announces(web: App) -> None:
    budget = web.broker.engine.budgets["HTTP requests"]
    reader, writer = await connect(web.http_endpoint)
    writer.write(b"POST /livez HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\ncontent-length: 0\r\n\r\n")
    writer.write(b"%x\r\n%b\r\n" % (bodies.BODY_BYTES_FREE + 5, bytes(bodies.BODY_BYTES_FREE + 5)))
    await eventually(lambda: _has_bodies(web, 5), "the bytes that arrived", within_s=30)
    writer.write(b"0\r\n\r\n")
    assert b"405" in await reader.readline()
    writer.close()
    await eventually(lambda: _has_bodies(web, 0), "no bytes", within_s=30)
    assert budget.refused == 0


async def test_who_announces_bodies_and_sends_none_keeps_nobody_out(web: App) -> None:
    many = web.broker.engine.budgets["HTTP requests"].limit // bodies.BODY_BYTES_MAX
    head = f"POST /livez HTTP/1.1\r\nhost: localhost\r\ncontent-length: {bodies.BODY_BYTES_MAX}\r\n\r\n".encode()
    silent = [await connect(web.http_endpoint) for _ in range(many)]
    for _, writer in silent:
        writer.write(head + bytes(bodies.BODY_BYTES_FREE + 1))
    await eventually(lambda: _has_bodies(web, many), "a byte of each", within_s=30)
    assert (await _post(web, bodies.BODY_BYTES_FREE + 1)).status == 405
    for _, writer in silent:
        writer.close()
    await eventually(lambda: _has_bodies(web, 0), "no bytes", within_s=30)


async def _has_bodies(app: App, size: int) -> bool:
    return app.broker.engine.budgets["HTTP requests"].used == size


async def test_an_address_has_half_of_the_connections(sqlite_url: str) -> None:
    async with started(sqlite_url, max_http_connections=4) as app:
        open_ones = [await connect(app.http_endpoint) for _ in range(2)]
        await eventually(lambda: _uses(app, 2), "two connections", within_s=30)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await get(app.http_endpoint, "/livez")
        assert app.broker.engine.budgets["HTTP connections"].refused == 1
        for _, writer in open_ones:
            writer.close()
        await eventually(lambda: _uses(app, 0), "no connection", within_s=30)
        assert (await get(app.http_endpoint, "/livez")).status == 200


@pytest.mark.parametrize("sent", [b"", b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n"], ids=["silent", "idle"])
async def test_two_addresses_that_have_the_whole_port_keep_no_third_out(sqlite_url: str, sent: bytes) -> None:
    async with started(sqlite_url, max_http_connections=4) as app:
        taken = [await _connect_from(host, app) for host in ("127.0.0.2", "127.0.0.3") * 2]
        for reader, writer in taken:
            writer.write(sent)
            if sent:
                assert b"200" in await reader.readline()
        await eventually(lambda: _uses(app, 4), "a full port", within_s=30)
        third = [await connect(app.http_endpoint) for _ in range(2)]
        third[0][1].write(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert b"200" in await third[0][0].readline()
        assert await _rest(third[1][0]) == b""  # with two it would have as many as the others
        assert app.broker.engine.budgets["HTTP connections"].used == 4
        for _, writer in [*taken, *third]:
            writer.close()
        await eventually(lambda: _uses(app, 0), "no connection", within_s=30)


@pytest.mark.parametrize("hosts", [["127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5"], ["127.0.0.2", "127.0.0.3"]])
async def test_a_request_that_is_being_answered_is_ended_only_for_an_address_with_fewer(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, hosts: list[str]
) -> None:
    let_go, begun = asyncio.Event(), asyncio.Semaphore(0)

    async def page(_: Request) -> Response:
        begun.release()
        await let_go.wait()
        return PlainTextResponse("done")

    _mount(monkeypatch, [Route("/slow", page)])
    async with started(sqlite_url, max_http_connections=4) as app:
        taken = [await _connect_from(host, app) for host in (hosts * 4)[:4]]
        for _, writer in taken:
            writer.write(b"GET /slow HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        for _ in taken:
            await asyncio.wait_for(begun.acquire(), PATIENCE_S)
        if len(hosts) == 4:
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await get(app.http_endpoint, "/livez")
        else:
            assert (await get(app.http_endpoint, "/livez")).status == 200
            reader, writer = taken.pop(0)
            assert await _rest(reader) == b""
            writer.close()
        let_go.set()
        assert {(await answer(reader, writer)).text for reader, writer in taken} == {"done"}


async def test_addresses_with_one_connection_each_keep_no_newcomer_out(sqlite_url: str) -> None:
    async with started(sqlite_url, max_http_connections=4) as app:
        taken = [await _connect_from(f"127.0.0.{number}", app) for number in range(2, 6)]
        for reader, writer in taken[:3]:
            writer.write(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert b"200" in await reader.readline()
        await eventually(lambda: _uses(app, 4), "a full port", within_s=30)
        # First the one that never sent a request gives way, then the oldest of the others.
        for host, gives_way in (("127.0.0.6", taken[3][0]), ("127.0.0.7", taken[0][0])):
            reader, writer = await _connect_from(host, app)
            taken.append((reader, writer))
            writer.write(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert b"200" in await reader.readline()
            async with asyncio.timeout(PATIENCE_S):
                await _rest(gives_way)
        for _, writer in taken:
            writer.close()


async def _connect_from(host: str, app: App) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    name, _, port = app.http_endpoint.rpartition(":")
    return await asyncio.open_connection(name, int(port), local_addr=(host, 0))


async def _uses(app: App, count: int) -> bool:
    return app.broker.engine.budgets["HTTP connections"].used == count


@pytest.mark.parametrize(
    "begun",
    [b"", b"GET /livez HTTP/1.1\r\nhost: ", b"POST /livez HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\n\r\nhe"],
)
async def test_a_request_that_does_not_end_is_cut(web: App, monkeypatch: pytest.MonkeyPatch, begun: bytes) -> None:
    monkeypatch.setattr(connections, "REQUEST_S", 0.1)
    reader, writer = await connect(web.http_endpoint)
    writer.write(begun)
    async with asyncio.timeout(PATIENCE_S):
        assert await _rest(reader) == b""
    writer.close()


async def test_a_second_request_that_does_not_end_is_cut(web: App, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = await connect(web.http_endpoint)
    writer.write(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
    assert b"200" in await reader.readline()
    monkeypatch.setattr(connections, "REQUEST_S", 0.1)
    writer.write(b"GET /livez HTTP/1.1\r\nhost: lo")
    async with asyncio.timeout(PATIENCE_S):
        await _rest(reader)
    writer.close()


async def _rest(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


async def test_who_does_not_read_is_cut(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "UNREAD_S", 0.1)
    ended = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        try:
            while True:
                yield bytes(65_536)
                await asyncio.sleep(0)
        finally:
            ended.set()

    async def page(_: Request) -> Response:
        return StreamingResponse(endless())

    _mount(monkeypatch, [Route("/endless", page)])
    async with started(sqlite_url) as app:
        reader, writer = await connect(app.http_endpoint)
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"GET /endless HTTP/1.1\r\nhost: localhost\r\n\r\n")
        await asyncio.wait_for(ended.wait(), PATIENCE_S)
        writer.transport.abort()


async def test_who_does_not_read_the_little_that_is_left_is_cut(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "UNREAD_S", 0.1)

    async def page(_: Request) -> Response:
        assert app.monitoring.web is not None
        (connection,) = app.monitoring.web._server.server_state.connections

        async def parts() -> AsyncIterator[bytes]:
            while not connection.transport.get_write_buffer_size():
                yield bytes(16_384)

        return StreamingResponse(parts())

    _mount(monkeypatch, [Route("/page", page)])
    async with started(sqlite_url) as app:
        reader, writer = await connect(app.http_endpoint)
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"GET /page HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        await eventually(lambda: _uses(app, 1), "a connection", within_s=30)
        await eventually(lambda: _uses(app, 0), "no connection", within_s=30)
        writer.transport.abort()


async def test_requests_of_one_connection_are_answered_in_order(web: App) -> None:
    reader, writer = await connect(web.http_endpoint)
    writer.write(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n" * 2)
    writer.write(b"GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
    async with asyncio.timeout(PATIENCE_S):
        assert (await reader.read()).count(b"200 OK") == 3
    writer.close()


async def test_no_http_is_no_http(web: App) -> None:
    reader, writer = await connect(web.http_endpoint)
    writer.write(b"\x16\x03\x01 a TLS hello\r\n\r\n")
    assert (await answer(reader, writer)).status == 400


# What other packages mount.


class _Entry:
    """Stands for an installed package that mounts its routes."""

    def __init__(self, routes: Sequence[BaseRoute], failure: Exception | None = None) -> None:
        self.name = "console"
        self.left = False
        self.place: MountContext | None = None
        self._routes = routes
        self._failure = failure

    def load(self) -> object:
        if self._failure is not None:
            raise self._failure
        return self._mounted

    @asynccontextmanager
    async def _mounted(self, place: MountContext) -> AsyncIterator[Sequence[BaseRoute]]:
        self.place = place
        yield self._routes
        self.left = True


def _mount(monkeypatch: pytest.MonkeyPatch, routes: Sequence[BaseRoute], failure: Exception | None = None) -> _Entry:
    entry = _Entry(routes, failure)
    monkeypatch.setattr(server, "installed", lambda: [entry])
    return entry


async def _hello(_: Request) -> Response:
    return PlainTextResponse("hello")


async def _fail(_: Request) -> Response:
    raise RuntimeError("a page fails")


async def test_a_package_mounts_its_routes_at_the_first_request(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = _mount(monkeypatch, [Route("/", _hello)])
    async with started(sqlite_url) as app:
        assert (await get(app.http_endpoint, "/readyz")).status == 200
        assert entry.place is None
        assert (await get(app.http_endpoint, "/")).text == "hello"
        assert entry.place == MountContext(app.endpoint, "plaintext", False, __version__)
        assert not entry.left
    assert entry.left


async def test_a_package_that_cannot_be_loaded_takes_nothing_else_away(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _mount(monkeypatch, [], ModuleNotFoundError("No module named 'popconsole'"))
    async with started(sqlite_url) as app:
        with capture_logs() as said:
            page = await get(app.http_endpoint, "/")
        assert (await get(app.http_endpoint, "/readyz")).status == 200
    assert "/readyz" in page.text
    assert [each["package"] for each in said if each["event"] == "not served over HTTP"] == ["console"]


async def test_a_page_that_fails_is_logged_and_the_server_goes_on(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _mount(monkeypatch, [Route("/fail", _fail)])
    async with started(sqlite_url) as app:
        with capture_logs() as said:
            page = await get(app.http_endpoint, "/fail")
        assert (await get(app.http_endpoint, "/livez")).status == 200
    assert page.status == 500
    assert "a page fails" not in page.text
    assert any("a page fails" in str(each.get("exception")) for each in said)


async def test_pages_that_fail_are_logged_once_a_minute(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _mount(monkeypatch, [Route("/fail", _fail)])
    async with started(sqlite_url) as app:
        with capture_logs() as said:
            assert {(await get(app.http_endpoint, "/fail")).status for _ in range(3)} == {500}
    assert len([each for each in said if each["event"] == "an HTTP request failed"]) == 1


def test_packages_are_found_by_their_entry_points() -> None:
    assert {each.group for each in mounts.installed()} <= {mounts.GROUP}


@pytest.mark.parametrize(
    ("host", "counted"),
    [
        ("203.0.113.7", "203.0.113.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("[2001:db8:1:2::9]", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:203.0.113.7", "203.0.113.7"),
        ("unknown", "unknown"),
    ],
)
def test_limits_per_address_count_networks_of_ipv6(host: str, counted: str) -> None:
    assert network_of(host) == counted


@pytest.mark.parametrize(
    ("host", "local"), [("127.0.0.1", True), ("::ffff:127.0.0.1", True), ("::ffff:10.0.0.1", False)]
)
def test_callers_of_this_machine_are_known_by_either_address(host: str, local: bool) -> None:
    assert is_loopback(host) is local
