"""Mirrors as operators see them: by metrics and by alerts."""

from __future__ import annotations

from dataclasses import replace

from popclient.admin import Admin, MirrorReport
from popserver.metrics.families import Families, Identity
from popserver.metrics.store import StoreNumbers, store_facts
from popserver.metrics.store_numbers import LeftOut, add_mirrors
from popserver.mirrors.records import ReportMirror, write
from popserver.mirrors.rules import MirrorFacts
from popserver.model.retry import SECOND_MS
from popserver.model.states import MirrorState
from tests.support.admin_server import AdminServer
from tests.support.open_store import OpenStore

FACTS = MirrorFacts("runs", "old:1", "new:1", "", "flights", "", "one", "ship", MirrorState.RUNNING, handed=7, lag=5)


def exported(store: OpenStore, series_max: int = 100) -> tuple[dict[tuple[str, str], float], int]:
    """The samples by name and mirror, and how many mirrors are left out."""
    numbers = StoreNumbers(store_facts(store.conn, store.now_ms, store.now_ms, 9), store.now_ms, store.now_ms, 0, 0)
    families, left_out = Families(Identity("c", "broker", "n"), series_max), LeftOut()
    add_mirrors(families, numbers, left_out)
    samples = [sample for family in families.all() for sample in family.samples]
    return {(each.name, each.labels["mirror"]): each.value for each in samples}, left_out.mirrors


def test_metrics_have_counts_lag_and_age(store: OpenStore) -> None:
    ended = FACTS._replace(mirror_id="ended", state=MirrorState.STOPPED, lag=-1, handed=3)
    for facts in (FACTS, ended):
        store.one(write, ReportMirror(facts, 30 * SECOND_MS, claim=False))
    store.now_ms += 9_500
    assert exported(store) == (
        {
            ("popmq_mirror_handed_total", "runs"): 7,
            ("popmq_mirror_lag_messages", "runs"): 5,
            ("popmq_mirror_last_report_age_seconds", "runs"): 9.5,
            ("popmq_mirror_handed_total", "ended"): 3,
        },
        0,
    )
    assert exported(store, series_max=3)[1] == 1


def test_an_alert_begins_when_a_lease_ends_without_a_last_report(admin_server: AdminServer) -> None:
    report = MirrorReport("nightly", "old:1", "new:1", "flights", None, "one", "ship")
    with Admin(admin_server.server.endpoint) as admin:
        admin.report_mirror(report, lease=5)
        admin.report_mirror(replace(report, mirror_id="ended", state="STOPPED"), lease=5)
        admin_server.server.clock.advance("5s")
        (alert,) = admin.alerts().alerts
        assert (alert.kind, alert.subject, alert.page) == ("mirror_gone", "nightly", ("mirrors",))
        assert alert.detail == "It ran on ship."
