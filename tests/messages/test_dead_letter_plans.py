"""A dead letter is found by its message, however many others its group has."""

from __future__ import annotations

import re

from tests.support.open_store import OpenStore
from tests.support.plans import OTHERS, Plans
from tests.support.redrive import die, give_up


def test_what_dies_is_looked_up_by_its_message(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic])
    die(store, group, topic, 3)
    store.conn.exec_driver_sql(
        f"WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {OTHERS})"
        " INSERT INTO dead_letter (group_id, origin_key, origin_topic_id, copy_key, attempt, reason, dead_at_ms)"
        f" SELECT {group.group_id}, n, 1, n, 1, '', 1 FROM numbers"
    )
    if not store.database.is_sqlite:
        store.conn.exec_driver_sql("ANALYZE dead_letter")
    store.send(topic, 2)
    held = store.receive(group, topic, 2)
    plans = Plans(store)
    with plans.caught():
        give_up(store, group, held)
    looks = {each: plan for each, plan in plans.explained().items() if each.startswith("SELECT dead_letter.")}
    assert looks
    for statement, plan in looks.items():
        assert re.search(r"\borigin_key ?= ?", plan), (statement, plan)
    store.conn.exec_driver_sql(f"DELETE FROM dead_letter WHERE copy_key <= {OTHERS}")  # they have no copies
    store.conn.commit()
