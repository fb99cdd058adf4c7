"""Ports of workers: bound by the supervisor, closed while no worker serves there, and opened again where they were."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator, Mapping, Sequence

import structlog

from popserver.config import OFF, Config
from popserver.front.sockets import listening_sockets
from popserver.model.errors import CannotListen
from popserver.transport.listen import (
    PORT_MAX,
    address_of,
    cannot_listen,
    cannot_listen_for_http,
    split_address,
)

BACKLOG = 1_024
ANY_HOST = ("", "0.0.0.0", "::")  # noqa: S104 - compared, not listened on

log = structlog.get_logger("popserver.workers")


class BoundPort:
    """One port of one worker, with a socket for each address of the host."""

    def __init__(self, option: str, host: str, sockets: Sequence[socket.socket]) -> None:
        """`option` of the command line sets it. The port for clients (`--port`) is shared with other workers."""
        self._option = option
        self.host = host
        self.number: int = sockets[0].getsockname()[1]
        self._sockets = sockets

    @property
    def address(self) -> str:
        return address_of(self.host, self.number)

    def close(self) -> None:
        """From now on connections are refused, unless a worker still listens."""
        for each in self._sockets:
            each.close()
        self._sockets = ()

    def open(self) -> list[int]:
        """The descriptors of its sockets, bound again if they were closed. Raises `CannotListen`."""
        try:
            self._sockets = self._sockets or listening_sockets(
                self.host, self.number, is_shared=self._option == "--port"
            )
        except OSError:
            raise cannot_listen(self.host, self.number, self._option) from None
        return [each.fileno() for each in self._sockets]


Ports = Mapping[str, BoundPort]  # by the names of `GivenSockets`; a worker without HTTP has no port of that name


def open_ports(config: Config) -> list[Ports]:
    """Bind all ports of all workers. Raises `CannotListen`."""
    check_ports(config)
    shared = list(_shared_ports(config))
    return [_ports_of(config, number, clients) for number, clients in enumerate(shared, 1)]


def more_ports(config: Config, have: int) -> list[Ports]:
    """Bind the ports of further workers beside the `have` that there are. Raises `CannotListen`.

    `config.port` is the port that these share. Nobody listens on the new sockets before a worker does, so they get no
    connections until then.
    """
    check_ports(config)
    made: list[Ports] = []
    try:
        for number in range(have + 1, config.workers + 1):
            clients = BoundPort("--port", config.host, _joining(config))
            made.append({"clients": clients})
            made[-1] = _ports_of(config, number, clients)
    except CannotListen:
        for ports in made:
            for each in ports.values():
                each.close()
        raise
    return made


def _joining(config: Config) -> list[socket.socket]:
    try:
        return listening_sockets(config.host, config.port, is_shared=True)
    except OSError:
        raise cannot_listen(config.host, config.port, "--port") from None


def check_ports(config: Config) -> None:
    """Raise `CannotListen` if the ports of all workers do not fit beside each other."""
    ranges = {"--port": (config.host, range(config.port, config.port + 1))}
    for option, address in (("--http", config.http), ("--admin", config.admin)):
        if address in ("", OFF):
            continue
        host, first = split_address(address, port_min=0)
        last = first + config.workers - 1
        if last > PORT_MAX:
            raise CannotListen(
                f"{option} {address} leaves no ports for {config.workers} workers: each worker takes the port after"
                f" that of the one before; choose a port up to {PORT_MAX - config.workers + 1}"
            )
        ranges[option] = host, range(first, last + 1)
    fixed = {option: each for option, each in ranges.items() if each[1].start}  # 0: any free port
    for (one, (host, ports)), (other, (other_host, others)) in itertools.combinations(fixed.items(), 2):
        is_one_host = host == other_host or host in ANY_HOST or other_host in ANY_HOST
        if is_one_host and ports.start < others.stop and others.start < ports.stop:
            raise CannotListen(
                f"{one} and {other} need the same ports with {config.workers} workers: {one} takes {_words(ports)},"
                f" {other} takes {_words(others)}; choose ports that are further apart"
            )


def _words(ports: range) -> str:
    return f"port {ports.start}" if len(ports) == 1 else f"the ports {ports.start} to {ports.stop - 1}"


def _ports_of(config: Config, number: int, clients: BoundPort) -> Ports:
    ports = {"clients": clients}
    if config.admin:
        ports["admin"] = _admin_port(config.admin, number)
    if config.http != OFF and (http := _http_port(config, number)) is not None:
        ports["http"] = http
    return ports


def _shared_ports(config: Config) -> Iterator[BoundPort]:
    """The port for clients, once for each worker: the system spreads connections over those that listen.

    gRPC's library listens on sockets of its own beside these, which then only keep the port.
    """
    host, port = config.host, config.port
    try:
        if port:
            # Another program of this user that shares its port too would get some of the connections.
            for probe in listening_sockets(host, port):
                probe.close()
        for _ in range(config.workers):
            sockets = listening_sockets(host, port, is_shared=True)
            port = sockets[0].getsockname()[1]
            if config.grpc_engine == "builtin":
                for each in sockets:
                    each.listen(BACKLOG)
            yield BoundPort("--port", host, sockets)
    except OSError:
        raise cannot_listen(host, port, "--port") from None


def _admin_port(address: str, number: int) -> BoundPort:
    """Worker 1 has the port of the address, worker 2 the next one; with port 0 each has a free one."""
    host, port = _address_of_worker(address, number)
    try:
        return BoundPort("--admin", host, listening_sockets(host, port))
    except OSError:
        raise cannot_listen(host, port, "--admin") from None


def _http_port(config: Config, number: int) -> BoundPort | None:
    host, port = _address_of_worker(config.http, number)
    try:
        return BoundPort("--http", host, listening_sockets(host, port))
    except OSError as error:
        refusal = cannot_listen_for_http(host, port, error)
        if "http" in config.model_fields_set:
            raise refusal from None
        log.warning("no metrics, health and console over HTTP", worker=number, reason=refusal.sentence)
        return None


def _address_of_worker(address: str, number: int) -> tuple[str, int]:
    host, port = split_address(address, port_min=0)
    return host, port + number - 1 if port else 0
