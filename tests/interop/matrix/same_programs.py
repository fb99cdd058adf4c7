"""The programs of README, tour, tutorial, Spark's pages and examples, which run at PopMQ and at RocketMQ.

A program is run as its page or its file has it, but for the address. `refused` is what a server that is not PopMQ does
not offer: there the program ends with UnsupportedByServer, which names it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from popclient import Message
from tests.support.documentation_pages import blocks
from tests.support.rocketmq_cluster import accepting

ROOT = Path(__file__).parents[3]
README, TOUR, TUTORIAL = (ROOT / name for name in ("README.md", "docs/tour.md", "docs/tutorial.md"))
SPARK, DEAD_LETTERS = ROOT / "docs" / "spark.md", ROOT / "docs" / "spark-dead-letters.md"
MANAGING = ROOT / "docs" / "managing.md"
ORDER = Message("orders", "one espresso", tag="coffee")
ENDPOINT, FOLDER = "ENDPOINT", "FOLDER"  # in words: of the server, and of this run

# What has to be there before, at a server that does not make it on first use.
TOPICS: Mapping[str, Mapping[str, object]] = {
    **{name: accepting("NORMAL") for name in ("orders", "drinks", "takings", "departures", "spark-flights")},
    **{name: accepting("NORMAL") for name in ("flights", "bookings")},
    "tables": accepting("FIFO"),
    "reminders": accepting("DELAY"),
    "bills": accepting("TRANSACTION"),
}
_SOON = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1_000]}}
GROUPS: Mapping[str, Mapping[str, object]] = {
    **{name: {} for name in ("barista", "cellar", "official", "lake", "waiter", "bookings-ledger", "doctors")},
    **{name: {} for name in ("journal-files", "journal-table", "reports", "auditor", "flights-lake", "arrivals")},
    "till": {"consumeMessageOrderly": True},
    # As the tutorial makes it: two attempts, a second apart.
    "kitchen": {"retryMaxTimes": 1, "groupRetryPolicy": _SOON},
}
# popclient's receives look at all masters, and wait until the server has the client's settings.
BY_LUCK = (
    "after some tries: a receive of the official client looks at one of the two masters, and may find nothing there; as"
    " the first one of a group it may overtake the client's settings, and is refused"
)


class Program(NamedTuple):
    """One program, and what it needs and shows.

    name: in the table. code: saved in a file of its own; or words: what Python or a shell is given. shows: its output,
    in which `…` stands for anything. lines: after so many lines it is ended, if it does not end by itself. before: sent
    before. drained: (topic, group) whose messages of other programs are taken away before. given_up: (topic, group) of
    which the next message is a dead letter before. takes_java: it is Spark's. luck: why it may find nothing at
    RocketMQ; there it is run until it does.
    """

    name: str
    code: str = ""
    words: tuple[str, ...] = ()
    shows: str = "…"
    refused: str = ""
    lines: int = 0
    before: tuple[Message, ...] = ()
    drained: tuple[tuple[str, str], ...] = ()
    given_up: tuple[str, str] = ("", "")
    luck: str = ""
    is_command: bool = False
    takes_java: bool = False


def block(page: Path, word: str) -> str:
    """The Python of the page that has this word."""
    [found] = [each.text for each in blocks(page) if each.language == "python" and word in each.text]
    return found


def of_pages() -> Iterator[Program]:
    barista, kitchen = (("orders", "barista"),), (("orders", "kitchen"),)
    yield Program(
        "README: send, fail, be tried again",
        block(README, "invisible_duration=2"),
        shows="attempt 1: one espresso\nattempt 2: one espresso",
        drained=barista,
    )
    yield Program(
        "README: let a listener work",
        block(README, "PushConsumer"),
        shows="attempt 2: one espresso",
        lines=1,
        before=(ORDER,),
        drained=kitchen,
    )
    yield Program(
        "README: in order, later, together",
        block(README, "producer.transaction"),
        shows="['12.50']",
        drained=(("bills", "till"),),
    )
    yield Program(
        "README: to the lake and back",
        block(README, "spark.readStream"),
        before=(ORDER,),
        refused="cannot read by offsets",
        takes_java=True,
    )
    yield Program(
        "tour: ending a program",
        block(TOUR, "wait_for_server"),
        shows="one espresso",
        lines=1,
        before=(ORDER,),
        drained=kitchen,
    )
    yield Program(
        "tour: official clients",
        block(TOUR, "ClientConfiguration"),
        shows="one espresso",
        luck=BY_LUCK,
        before=(ORDER,),
        drained=(("orders", "cellar"),),
    )
    yield Program("tour: whole queues", block(TOUR, "PullConsumer"), before=(ORDER,), refused="QueryOffset")
    yield Program(
        "tour: lite topics",
        block(TOUR, "LiteSimpleConsumer"),
        shows="agent-42 hello, agent-42\nagent-43 hello, agent-43",
        refused="CreateTopic",
    )
    yield Program("tour: users", block(TOUR, "access_secret"), shows="['one espresso']", drained=kitchen)
    yield Program("tutorial: order.py", block(TUTORIAL, "# order.py"), shows="01… espresso\n01… tea\n01… water")
    yield Program(
        "tutorial: barista.py",
        block(TUTORIAL, "# barista.py"),
        shows="…espresso, attempt 1\n…espresso, attempt 2",
        before=tuple(Message("orders", drink) for drink in ("espresso", "tea", "water")),
        drained=barista,
    )
    yield Program(
        "tutorial: kitchen.py",
        block(TUTORIAL, "# kitchen.py"),
        shows="four calls",
        before=tuple(Message("orders", drink) for drink in ("espresso", "tea", "water")),
        drained=kitchen,
    )
    yield Program(
        "tutorial: table.py",
        block(TUTORIAL, "# table.py"),
        shows="['opened', 'paid', 'closed']",
        drained=(("tables", "till"),),
    )
    session = "import json\n" + block(SPARK, "memory=")
    finish = """
to_files = bookings.writeStream.option("path", "bookings").option("checkpointLocation", "checkpoint")
to_files.trigger(availableNow=True).start().awaitTermination()
print(sorted(row.body.decode() for row in spark.read.parquet("bookings").collect()))
"""
    yield Program(
        "Spark: a journal",
        session + block(SPARK, '"journalPath"') + finish,
        shows="['UA1', 'UA2']",
        before=(Message("bookings", "UA1"), Message("bookings", "UA2")),
        drained=(("bookings", "bookings-ledger"),),
        takes_java=True,
    )
    rows = "flights = spark.sql(\"SELECT 'UA' AS carrier, '1545' AS flight\")\n"
    yield Program(
        "Spark: writing",
        session + rows + block(SPARK, 'writeId="2013-02-08"'),
        takes_java=True,
    )
    yield Program(
        "Spark: dead letters of any server",
        session + block(DEAD_LETTERS, '"columns": "dead_letters"'),
        shows="…(none)…1…",
        before=(Message("flights", "NaN", tag="UA"),),
        drained=(("flights", "arrivals"),),
        given_up=("flights", "arrivals"),
        takes_java=True,
    )


def of_examples() -> Iterator[Program]:
    sent = ("examples/quickstart.py", ENDPOINT)
    yield Program(
        "examples/quickstart.py",
        words=sent,
        shows="sent 01…\nattempt 1: one espresso\nattempt 2: one espresso",
        drained=(("orders", "barista"),),
    )
    yield Program(
        "examples/official_client.py",
        words=("examples/official_client.py", ENDPOINT),
        shows="sent …\nreceived … one espresso",
        luck=BY_LUCK,
        drained=(("orders", "official"),),
    )
    yield Program("examples/push.py", words=("examples/push.py", ENDPOINT), refused="GetTopic")
    yield Program("examples/lite.py", words=("examples/lite.py", ENDPOINT), refused="GetTopic")
    yield Program(
        "examples/queue_granularity.py",
        words=("examples/queue_granularity.py", ENDPOINT),
        shows="…the auditor agrees: 5050, and has committed nothing",
        refused="QueryOffset",
    )
    yield Program(
        "examples/spark_modes.py",
        words=("-m", "examples.spark_modes", ENDPOINT, FOLDER),
        shows="…journal: 1,000 flights in Parquet, 1,000 in the table",
        refused="cannot read by offsets",
        takes_java=True,
    )
    yield Program(
        "examples/spark_modes.py … journal",
        words=("-m", "examples.spark_modes", ENDPOINT, FOLDER, "journal"),
        shows="journal: 1,000 flights in Parquet, 1,000 in the table",
        drained=(("spark-flights", "journal-files"), ("spark-flights", "journal-table")),
        takes_java=True,
    )
    yield Program(
        "examples/spark_event_time.py",
        words=("-m", "examples.spark_event_time", ENDPOINT, FOLDER),
        shows="…carriers: 1,000",
        refused="cannot read by offsets",
        takes_java=True,
    )


# Commands of the pages by what a server that is not PopMQ lacks for them.
_CALLS = {
    "popmq group create": "CreateGroup",
    "popmq message get": "GetMessage",
    "popmq why": "Why",
    "popmq dlq list": "ListDeadLetters",
    "popmq dlq redrive": "ListDeadLetters",
    "popmq message receive": "",
}


def of_commands() -> Iterator[Program]:
    """The commands of the tutorial, in its order."""
    lines = [line for each in blocks(TUTORIAL) if each.language == "sh" for line in each.text.splitlines()]
    for line in lines:
        words = line.split()
        call = next((call for name, call in _CALLS.items() if line.startswith(name)), None)
        if call is not None:
            yield Program(
                f"tutorial: `{' '.join(words[:3])}`",
                words=(re.sub("MESSAGE_ID", "0" * 34, line),),
                refused=call,
                before=(ORDER,) if not call else (),
                is_command=True,
            )


PROGRAMS = {each.name: each for each in (*of_pages(), *of_examples(), *of_commands())}
