"""A nightly DAG for the dead letters of a group: count them, send back those whose cause is gone, report the result.

Copy it into Airflow's folder of DAGs. It needs pip install popmq in Airflow's environment, and a connection `popmq`:

    export AIRFLOW_CONN_POPMQ='popmq://ACCESS_KEY:SECRET@127.0.0.1:8081'

Without a server of Airflow: python nightly_dead_letters.py [2026-11-20]

Each run has a plan of its own, which is named after its date. A task that is repeated continues with that plan, so
nothing is sent back twice.
"""

from __future__ import annotations

import sys
from collections import Counter
from datetime import UTC, datetime

from airflow.sdk import Connection, dag, task

from popclient import ClientConfig
from popclient.admin import Admin, DeadLetterSelection

GROUP = "arrivals"
CAUSE = "REASON CONTAINS 'weather'"  # the service that gave these reasons answers again
RATE = 100.0  # messages a second


def admin() -> Admin:
    """A client with Airflow's connection `popmq`."""
    to = Connection.get("popmq")
    config = ClientConfig(f"{to.host}:{to.port}", access_key=to.login or "", access_secret=to.password or "")
    return Admin(config)


@dag(
    schedule="0 3 * * *",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 3},
    tags=["popmq"],
)
def nightly_dead_letters() -> None:
    """Counts, plans, sends back, reports."""

    @task
    def count() -> dict[str, int]:
        """How many dead letters there are of each reason."""
        with admin() as opened:
            return dict(Counter(letter.reason for letter in opened.dead_letters(GROUP)))

    @task
    def plan(ds: str | None = None, data_interval_end: datetime | None = None) -> str:
        """Stores which messages go back: those that died before this night. The same run makes the same plan."""
        chosen = DeadLetterSelection(GROUP, dead_until=data_interval_end, where=CAUSE)
        with admin() as opened:
            return opened.plan_redrive(chosen, plan_id=f"nightly-{ds}", reason="the service answers again").plan_id

    @task
    def send_back(plan_id: str) -> str:
        """Sends the messages of the plan back to the group."""
        with admin() as opened:
            redriven = sum(step.redriven for step in opened.run_redrive(plan_id, rate=RATE))
        print(f"{plan_id}: {redriven} sent back by this task")
        return plan_id

    @task
    def report(plan_id: str, reasons: dict[str, int]) -> dict[str, int]:
        """What became of the plan's messages, by state."""
        with admin() as opened:
            states = dict(Counter(each.state for each in opened.redrives(plan_id)))
        print(f"{plan_id}: reasons before {reasons}, states now {states}")
        return states

    report(send_back(plan()), count())


nightly = nightly_dead_letters()

if __name__ == "__main__":
    night = datetime.fromisoformat(sys.argv[1]) if sys.argv[1:] else datetime.now(UTC)
    run = nightly.test(logical_date=night.replace(tzinfo=UTC))
    print("the run ended as", run.state)
