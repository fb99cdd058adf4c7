"""The systemd unit and the Kubernetes manifests are valid, their options exist, and servers start with them."""

from __future__ import annotations

import configparser
import shlex
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import grpc
import kubernetes_validate
import pytest
import yaml
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from popserver.config import Config
from tests.deploy.deployed import CREDENTIALS, DEPLOY, PATIENCE_S, check_settings, running
from tests.support.documentation_pages import blocks
from tests.support.server_process import POPMQ

UNIT = DEPLOY / "systemd" / "popmq.service"
MANIFESTS = {path.stem: list(yaml.safe_load_all(path.read_text())) for path in (DEPLOY / "kubernetes").glob("*.yaml")}
OLDEST_KUBERNETES = "1.27"  # probes by gRPC are stable from there on
STOP_S = 20  # besides the calls that run, for what a server does when it stops


class Unit(dict[str, list[str]]):
    """The keys of a systemd unit, each with all its values."""

    def __init__(self, text: str) -> None:
        super().__init__()
        for line in text.splitlines():
            name, is_key, value = line.partition("=")
            if is_key and not line.startswith("#"):
                self.setdefault(name, []).append(value)

    def one(self, name: str) -> str:
        (value,) = self[name]
        return value


@pytest.fixture
def unit() -> Unit:
    return Unit(UNIT.read_text())


def pod(kind: str) -> dict[str, Any]:
    """The pod that a manifest makes."""
    spec: dict[str, Any] = MANIFESTS[kind][0]["spec"]["template"]["spec"]
    return spec


def environment_of(kind: str, **secrets: str) -> dict[str, str]:
    """What a pod's container gets; `secrets` by their keys, with underscores for hyphens."""
    found = dict[str, str]()
    for each in pod(kind)["containers"][0]["env"]:
        source = each["valueFrom"]
        if source.get("secretKeyRef", {}).get("optional"):
            assert each["name"].removeprefix("POPMQ_").lower() in Config.model_fields
        elif "secretKeyRef" in source:
            found[each["name"]] = secrets[source["secretKeyRef"]["key"].replace("-", "_")]
        else:
            assert source == {"fieldRef": {"fieldPath": "status.podIP"}}
            found[each["name"]] = "127.0.0.1"
    return found


def words_of(kind: str, address: str = "127.0.0.1") -> list[str]:
    return [word.replace("$(POD_IP)", address) for word in pod(kind)["containers"][0]["args"]]


def ends_within(settings: Config) -> float:
    handover_ms = settings.handover if settings.database_url.startswith("postgresql") else 0
    return (handover_ms + settings.drain_timeout) / 1_000 + STOP_S


def health(endpoint: str, service: str) -> int:
    with grpc.insecure_channel(endpoint) as channel:
        answer: HealthCheckResponse = HealthStub(channel).Check(HealthCheckRequest(service=service), timeout=PATIENCE_S)
    return answer.status


def test_kubernetes_accepts_the_manifests() -> None:
    for documents in MANIFESTS.values():
        for document in documents:
            kubernetes_validate.validate(document, OLDEST_KUBERNETES, strict=True)
            kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("kind", MANIFESTS)
def test_a_pod_has_few_rights_and_time_to_stop(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = pod(kind)
    (container,) = spec["containers"]
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["runAsUser"] == 10001, "the user of the image"
    assert not spec["automountServiceAccountToken"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    environment = environment_of(kind, access_key="root", secret="s" * 20, database_url="postgresql://db/popmq")
    settings = check_settings(words_of(kind), environment, monkeypatch)
    assert settings.auth
    assert spec["terminationGracePeriodSeconds"] >= ends_within(settings)
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports["grpc"] == settings.port
    service = MANIFESTS[kind][1]
    assert service["spec"]["selector"].items() <= MANIFESTS[kind][0]["spec"]["template"]["metadata"]["labels"].items()
    assert {each["targetPort"] for each in service["spec"]["ports"]} <= ports.keys()


def test_a_service_named_popmq_sets_no_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubernetes gives pods the address of each service as NAME_PORT, unless they ask for none."""
    with pytest.raises(ValueError, match="port"):
        check_settings(["serve"], {"POPMQ_PORT": "tcp://10.0.0.7:8081"}, monkeypatch)
    for kind, documents in MANIFESTS.items():
        assert [each["metadata"]["name"] for each in documents if each["kind"] == "Service"] == ["popmq"]
        assert pod(kind)["enableServiceLinks"] is False


@pytest.mark.parametrize(
    ("address", "advertised"), [("10.0.0.7", "10.0.0.7:8081"), ("fd00:10:244::5", "[fd00:10:244::5]:8081")]
)
def test_a_pod_is_reached_at_its_address(address: str, advertised: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_settings(words_of("postgres", address), {}, monkeypatch).advertise == advertised


@pytest.mark.parametrize("kind", MANIFESTS)
def test_a_pod_starts_and_its_probes_pass(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue("postgres_url") if kind == "postgres" else f"sqlite:///{tmp_path / 'popmq.db'}"
    environment = environment_of(kind, access_key="root", secret="a-long-secret", database_url=url)
    image = {"POPMQ_HOST": "127.0.0.1", "POPMQ_LOG_FORMAT": "json", "POPMQ_DATABASE_URL": url}
    with running(words_of(kind), image | environment, tmp_path) as facts:
        container = pod(kind)["containers"][0]
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert container[probe]["grpc"]["port"] == Config.model_fields["port"].default
            assert health(facts["grpc"], container[probe]["grpc"]["service"]) == HealthCheckResponse.SERVING


def test_one_server_has_a_file_and_several_have_a_postgres() -> None:
    sqlite, postgres = MANIFESTS["sqlite"][0], MANIFESTS["postgres"][0]
    assert (sqlite["kind"], sqlite["spec"]["replicas"]) == ("StatefulSet", 1)
    (claim,) = sqlite["spec"]["volumeClaimTemplates"]
    mounted = {each["name"]: each["mountPath"] for each in pod("sqlite")["containers"][0]["volumeMounts"]}
    assert mounted[claim["metadata"]["name"]] == "/data"
    assert postgres["kind"] == "Deployment"
    assert "POPMQ_DATABASE_URL" in environment_of("postgres", access_key="", secret="", database_url="")


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/opt/popmq/bin/popmq", POPMQ))
    done = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    weighed = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=20", str(copy)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert weighed.returncode == 0, weighed.stdout + weighed.stderr


def test_a_unit_has_time_to_stop(unit: Unit, monkeypatch: pytest.MonkeyPatch) -> None:
    words = shlex.split(unit.one("ExecStart"))[1:]
    several = {"POPMQ_DATABASE_URL": "postgresql://db/popmq"}
    assert int(unit.one("TimeoutStopSec")) >= ends_within(check_settings(words, several, monkeypatch))
    assert unit.one("KillSignal") == "SIGUSR1", "hands clients over"


def environment_file() -> dict[str, str]:
    """The example of docs/deploying.md."""
    found = [block.text for block in blocks(DEPLOY.parent / "docs" / "deploying.md") if "POPMQ_HOST=10." in block.text]
    (text,) = found
    reading = configparser.ConfigParser(interpolation=None)
    reading.optionxform = str  # type: ignore[assignment,method-assign]
    reading.read_string(f"[all]\n{text}")
    return dict(reading["all"])


def test_the_unit_starts_a_server_that_says_so(
    unit: Unit, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = shlex.split(unit.one("ExecStart"))[1:]
    environment = environment_file()
    assert check_settings(words, environment, monkeypatch).auth
    assert environment.keys() >= CREDENTIALS.keys()
    assert unit.one("Type") == "notify"
    address = tmp_path_factory.mktemp("s") / "n"  # a short path
    environment |= {
        "POPMQ_HOST": "127.0.0.1",
        "POPMQ_DATABASE_URL": f"sqlite:///{tmp_path / 'popmq.db'}",
        "NOTIFY_SOCKET": str(address),
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(address))
        systemd.settimeout(PATIENCE_S)
        with running(words, environment, tmp_path):
            ready = systemd.recv(4_096).decode().splitlines()
        assert ready[0] == "READY=1"
        assert ready[1].startswith("STATUS=popserver ready  grpc=127.0.0.1:")
        assert systemd.recv(4_096) == b"STOPPING=1"


def test_a_server_without_a_supervisor_that_listens_starts_too(tmp_path: Path) -> None:
    for address in (str(tmp_path / "nobody"), "@popmq-nobody"):
        with running(["serve", "--log-format", "json"], {"NOTIFY_SOCKET": address}, tmp_path) as facts:
            assert facts["grpc"]
