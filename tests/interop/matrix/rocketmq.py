"""RocketMQ from Maven Central, as the benchmarks start it: a name server, and a broker with its proxy."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.peers.rocketmq import VERSION, Home, Tables, registered
from benchmarks.peers.tools import Missing as Missing
from popclient import ClientConfig, Tls
from tests.interop.matrix.stage import DOCTORS, SIGNED, Needs, Scene, Servers, names_of
from tests.support.certificates import Authority
from tests.support.rocketmq_cluster import BROKER, JAVA, accepting
from tests.support.rocketmq_cluster import classpath as classpath

NAME = f"RocketMQ {VERSION}"
TLS_ALONE = "-Dtls.server.mode=enforcing"
# Lite topics are queues beside those of their topic.
WITH_LITE = {"enableLmq": "true", "enableMultiDispatch": "true"}
# The topics of popclient's own tests, which have the names of those tests; each has a group.
OWN = {
    "journal": "NORMAL",
    "written": "NORMAL",
    "lettered": "NORMAL",
    "batches": "FIFO",
    "kept": "NORMAL",
    "forwarded": "NORMAL",
    "decided": "TRANSACTION",
    "named": "NORMAL",
}
AUTH = "org.apache.rocketmq.auth.authentication"


def _signatures(metadata: str) -> dict[str, object]:
    name, secret = SIGNED
    return {
        "authenticationEnabled": "true",
        "authenticationProvider": f"{AUTH}.provider.DefaultAuthenticationProvider",
        "authenticationMetadataProvider": metadata,
        "initAuthenticationUser": json.dumps({"username": name, "password": secret}),
        "innerClientAuthenticationCredentials": json.dumps({"accessKey": name, "secretKey": secret}),
    }


# Settings with which they refuse who does not sign.
SIGNED_PROXY = _signatures("org.apache.rocketmq.proxy.auth.ProxyAuthenticationMetadataProvider")
SIGNED_BROKER = _signatures(f"{AUTH}.provider.LocalAuthenticationMetadataProvider")


class RocketMQServers(Servers):
    """One broker with its proxy, whose topics and groups were there when it started."""

    name = NAME
    shortest_hold_s = 10
    lite_quota = 5
    has_account = False  # for clients of its proxy

    def __init__(self, home: Home, certificate: Path, topics: Iterable[str], needs: Needs) -> None:
        # A proxy within a broker has no lite topics, and speaks TLS alone only if the broker does so too.
        self._started = home.broker_and_proxy if needs.has_lite or needs.has_tls else home.proxy
        self._topics = topics
        key, secret = SIGNED if needs.signs else ("", "")
        tls = Tls(ca=certificate) if needs.has_tls else False
        self._config = ClientConfig(home.address, access_key=key, access_secret=secret, tls=tls)
        self.endpoint = self.endpoints = home.address
        self.certificate = certificate
        self._running = ExitStack()

    def prepare(self, topic: str, group: str, scene: Scene) -> None:
        """They are in the tables that the broker has read."""

    def is_done(self, topic: str, group: str) -> bool:
        raise NotImplementedError("it gives clients of its proxy no account of a group")

    def start(self) -> None:
        self._pid = self._running.enter_context(self._started())
        asyncio.run(registered(self._config, list(self._topics)))

    def stop(self) -> None:
        self._running.close()

    def kill(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        self._running.close()


@contextmanager
def running(folder: Path, scenes: Iterable[tuple[str, str, Scene]], needs: Needs) -> Iterator[RocketMQServers]:
    """A broker with the topics and groups of the scenes (scenario, language, what it needs)."""
    authority = Authority(folder)
    pair = authority.issue("server")
    proxy: dict[str, object] = {"tlsTestModeEnable": False, "tlsKeyPath": str(pair.key), "tlsCertPath": str(pair.cert)}
    broker: dict[str, object] = {**BROKER, **(WITH_LITE if needs.has_lite else {})}
    if needs.signs:
        proxy |= SIGNED_PROXY
        broker |= SIGNED_BROKER
    tables = tables_of(scenes)
    home = Home(
        classpath(),
        folder / "rocketmq",
        tables,
        broker=broker,
        proxy=proxy,
        java=JAVA,
        of_proxy=(TLS_ALONE,) if needs.has_tls else (),
    )
    with home.name_server():
        servers = RocketMQServers(home, authority.ca, tables.topics, needs)
        try:
            servers.start()
            yield servers
        finally:
            servers.stop()


def tables_of(scenes: Iterable[tuple[str, str, Scene]]) -> Tables:
    topics: dict[str, dict[str, object]] = {name: accepting(accepts) for name, accepts in OWN.items()}
    groups: dict[str, dict[str, object]] = {DOCTORS: {}}
    groups |= {group_of(topic): {"consumeMessageOrderly": accepts == "FIFO"} for topic, accepts in OWN.items()}
    soon = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1_000]}}
    for scenario, language, scene in scenes:
        topic, group = names_of(scenario, language)
        topics[topic] = accepting(scene.accepts)
        groups[group] = {
            "retryMaxTimes": scene.max_attempts - 1,
            "groupRetryPolicy": soon,
            "consumeMessageOrderly": scene.accepts in ("FIFO", "LITE"),
            "attributes": _of_lite_topics(topic, scene) if scene.lite else {},
        }
    return Tables(topics, groups)


def group_of(topic: str) -> str:
    """The group of a topic of OWN."""
    return f"group-of-{topic}"


def _of_lite_topics(topic: str, scene: Scene) -> dict[str, object]:
    return {
        "lite.bind.topic": topic,
        "lite.sub.model": scene.lite.capitalize(),
        "lite.sub.client.quota": str(RocketMQServers.lite_quota),
    }
