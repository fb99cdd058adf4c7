"""popmq repair: without --yes it shows what it would do."""

from __future__ import annotations

from tests.support.shell import Shell


def test_the_command(shell: Shell) -> None:
    assert shell.ok("repair").lines == ["nothing keeps messages from being delivered"]
    shell.ok("topic", "create", "plain", "--queues", "1")
    shell.ok("message", "send", "plain", "hello")
    broker = shell.broker.app.broker
    # In memory a reader has the connection of the writer.
    damage = "UPDATE queue SET min_offset = 1"
    shell.broker.run(broker.engine.reader.read(lambda conn: conn.exec_driver_sql(damage).rowcount))
    tried = shell("repair")
    assert (tried.status, tried.lines[0]) == (
        1,
        "1 rows may keep messages from being delivered; repair them with --yes",
    )
    assert "a message before its queue's beginning" in tried.out
    assert shell("--json", "repair").document["found"] == 1
    assert shell.ok("repair", "--yes").lines[0] == "1 rows are repaired"
    assert shell.ok("repair").lines == ["nothing keeps messages from being delivered"]
