"""The DAG of examples/airflow, run by Airflow in an environment of its own: `make test-airflow`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import popserver
from popclient import Producer, SimpleConsumer
from popclient.admin import Admin
from popserver import EmbeddedBroker

DAG = Path(__file__).parents[2] / "examples" / "airflow" / "nightly_dead_letters.py"
PYTHON = os.environ.get("POPMQ_TEST_AIRFLOW", "")
REASONS = ["weather: no answer"] * 5 + ["no such gate"] * 2


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with popserver.embedded(min_invisible="1s") as running:
        yield running


def die(endpoint: str, reasons: list[str]) -> None:
    """One dead letter for each reason."""
    with Producer(endpoint) as producer, SimpleConsumer(endpoint, "arrivals", "flights") as consumer:
        for reason in reasons:
            producer.send("flights", reason)
            [message] = consumer.receive(1)
            consumer.forward_to_dead_letter_queue(message, reason)


def test_it_is_python() -> None:
    compile(DAG.read_text(), DAG, "exec")


@pytest.mark.skipif(not PYTHON, reason="airflow: make test-airflow")
@pytest.mark.timeout(900)
def test_each_night_sends_back_what_can_work_again(broker: EmbeddedBroker, tmp_path: Path) -> None:
    die(broker.endpoint, REASONS)
    environment = os.environ | {
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(DAG.parent),
        "AIRFLOW_CONN_POPMQ": f"popmq://{broker.endpoint}",
    }

    def airflow(*words: str) -> str:
        command = [PYTHON, *words]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    airflow("-m", "airflow", "db", "migrate")
    for redriven in (5, 0):  # a night that is repeated sends nothing back again
        said = airflow(str(DAG), "2099-11-20")
        assert "the run ended as success" in said
        assert f"nightly-2099-11-20: {redriven} sent back by this task" in said
    with Admin(broker.endpoint) as admin:
        left = [letter.reason for letter in admin.dead_letters("arrivals")]
        plan = admin.redrive_plan("nightly-2099-11-20")
        assert [each.state for each in admin.redrives(plan.plan_id)] == ["REDRIVEN"] * 5
    assert len(left) == 2
    with SimpleConsumer(broker.endpoint, "arrivals", "flights", await_duration=5) as consumer:
        again = [message.text for _ in range(5) for message in consumer.receive(1)]
        assert again == ["weather: no answer"] * 5
