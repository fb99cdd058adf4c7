"""`popmq mirrors`: listed for people and for programs, and forgotten."""

from __future__ import annotations

from popclient.admin import Admin, MirrorReport
from tests.support.shell import Shell


def test_mirrors_are_listed_and_forgotten(shell: Shell) -> None:
    assert shell.ok("mirrors", "list").lines == ["no mirrors"]
    waits = MirrorReport(
        "nightly", "old:8081", "new:8081", "flights", "billing", "one", "ship", "HELD", "the disk is full", "{}", 7
    )
    with Admin(shell.endpoint) as admin:
        admin.report_mirror(waits, lease=300)
        admin.report_mirror(MirrorReport("all", "old:8081", "new:8081", "flights", None, "one", "ship", "DONE", lag=0))
    headings, of_all, nightly, sentence = shell.ok("mirrors", "list").lines
    assert headings.split() == [
        "MIRROR", "FROM", "TO", "TOPIC", "GROUP", "STATE", "HANDED", "LAG", "LAST", "REPORT",
    ]  # fmt: skip
    assert of_all.split()[:7] == ["all", "old:8081", "new:8081", "flights", "DONE", "0", "0"]
    assert nightly.split()[:6] == ["nightly", "old:8081", "new:8081", "flights", "billing", "HELD"]
    assert nightly.split()[-2:] == [nightly.split()[-2], "ago"] and " 7  unknown " in nightly
    assert sentence == "nightly: the disk is full"
    document = shell.json("mirrors", "list")[1]
    assert (document["mirror_id"], document["group"], document["handed"], document["lag"]) == (
        "nightly", "billing", 7, None,
    )  # fmt: skip
    assert "position" not in document and document["lease_until"].endswith("Z")

    refused = shell("mirrors", "forget", "nightly", "--yes")
    assert refused.status == 1
    assert "mirror 'nightly' runs on ship (since " in refused.err
    assert shell.ok("mirrors", "forget", "all", "--yes").lines == ["forgot mirror all"]
    assert shell("mirrors", "forget", "all", "--yes").status == 4, "there is none"
    assert [each["mirror_id"] for each in shell.json("mirrors", "list")] == ["nightly"]
