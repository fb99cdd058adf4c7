"""Where a scenario does not pass, and why. A run expects these to fail as they do, and notices when they are mended."""

from __future__ import annotations

import queue
import re
from typing import NamedTuple

import pytest

from tests.interop.matrix.rocketmq import NAME as ROCKETMQ
from tests.interop.official import Refused

POPMQ = ("SQLite", "Postgres", "two servers")


Failures = tuple[type[BaseException], ...]
NOT_REFUSED: Failures = (pytest.fail.Exception,)
WAITED: Failures = (AssertionError, TimeoutError)


class Fault(NamedTuple):
    """A reason, and the cells that have it; `scenarios`, `languages` and `servers` are names with spaces between.

    raises, says: what the scenario ends with, and a pattern of its words. Any other failure is a failure.
    """

    scenarios: str
    languages: str
    servers: tuple[str, ...]
    raises: Failures
    says: str
    reason: str
    is_constant: bool = True  # else it passes now and then

    def explains(self, failure: BaseException) -> bool:
        return isinstance(failure, self.raises) and re.search(self.says, str(failure)) is not None

    def is_at(self, scenario: str, language: str, server: str) -> bool:
        return scenario in self.scenarios.split() and language in self.languages.split() and server in self.servers


FAULTS: tuple[Fault, ...] = (
    Fault(
        "late",
        "go",
        (*POPMQ, ROCKETMQ),
        NOT_REFUSED,
        "DID NOT RAISE",
        "The Go client's `Ack` looks at no answer: it returns no error for an ack that the server has refused. The"
        " message comes again, as with other clients.",
    ),
    Fault(
        "tls",
        "rust",
        (*POPMQ, ROCKETMQ),
        (Refused,),
        "failed to connect to peer",
        "The Rust client has an option for TLS that it does not carry out: its source says TODO, and it gets no"
        " connection. Let it speak plaintext, which PopMQ's port takes too unless `--tls tls` forbids it.",
    ),
    Fault(
        "restart kill",
        "java node popclient",
        (ROCKETMQ,),
        (AssertionError,),
        "acked messages came back",
        "RocketMQ stores the progress of groups every 5 s (`flushConsumerOffsetInterval`), so after `kill -9` messages"
        " come again that were acked in the last seconds; seldom after an orderly restart too. At PopMQ an ack is on"
        " the disk before its answer.",
        is_constant=False,
    ),
    Fault(
        "restart kill",
        "go rust python",
        (ROCKETMQ,),
        WAITED,
        "waited in vain|^$",
        "RocketMQ forgets its clients' settings when it ends, and then refuses their calls (cannot find client settings"
        " for this client). The Go and the Python client tell their settings again when the connection breaks, which is"
        " too early, and then every 5 min; the Rust client never does. PopMQ serves them at once.",
    ),
    Fault(
        "restart kill",
        "go",
        ("two servers",),
        WAITED,
        "waited in vain|acked messages came back|^$",
        "The Go client asks the same server in all attempts of a message, and waits 5 s in each while it is gone; and"
        " as in `late`, its `Ack` hides that an ack did not arrive. It goes on slowly, and messages may come again.",
        is_constant=False,
    ),
    Fault(
        "restart kill",
        "node",
        ("two servers",),
        WAITED,
        "waited in vain|^$",
        "The Node client sends to the queue with the number 0 alone, and receives from it alone (it compares a queue's"
        " number where it means a broker's), so it does not go on while the server of this queue is gone.",
        is_constant=False,
    ),
    Fault(
        "lite-exclusive",
        "node",
        (*POPMQ, ROCKETMQ),
        (AssertionError,),
        "waited in vain",
        "The Node client does not read the notice that another client has taken a lite topic: the messages go to the"
        " other client, and `getLiteTopicSet` goes on naming the lite topic.",
    ),
    Fault(
        "lite-exclusive",
        "python",
        POPMQ,
        (AssertionError, queue.Empty),
        "it heard ada: to the second|^$",
        'The Python client\'s `subscribe_lite("ada")` subscribes to the letters a and d, and the server hears of ada'
        " with the complete set: within 30 s, or by `subscribe_lite_all()`, which the tests call. That takes no lite"
        " topic from another client. Nor does this client hear that another one has taken its own.",
    ),
    Fault(
        "lite-simple lite-suspend",
        "python popclient",
        (ROCKETMQ,),
        (Refused,),
        "LITE_SIMPLE_CONSUMER",
        "RocketMQ 5.5.0 refuses simple consumers of lite topics: it does not know the client type"
        " LITE_SIMPLE_CONSUMER.",
    ),
    Fault(
        "lite-quota",
        "go",
        (ROCKETMQ,),
        NOT_REFUSED,
        "DID NOT RAISE",
        "RocketMQ tells the quota of lite topics in the settings and leaves it to its clients, and the Go client does"
        " not look at it. PopMQ refuses what is above.",
    ),
    Fault(
        "fifo-retry lite",
        "node",
        (ROCKETMQ,),
        (queue.Empty,),
        "^$",
        "At RocketMQ the scenario's group has a backoff that is a list of times. The Node client does not read such a"
        " list (its source says so), and gives up a failed message of a group in order after one attempt. With an"
        " exponential backoff, as PopMQ tells it, it passes.",
    ),
    Fault(
        "tls",
        "python",
        (ROCKETMQ,),
        (Refused,),
        '"settings" is null',
        "The Python client's `startup()` does not wait until the server has its settings, and the proxy refuses a"
        " `receive` that overtakes them (NullPointerException). So it was with the first consumer of a group at a proxy"
        " in a process of its own, which was served 2 s later. PopMQ serves it at once.",
        is_constant=False,
    ),
    Fault(
        "lite-suspend",
        "node",
        (ROCKETMQ,),
        (AssertionError,),
        "^$",
        "With a suspended message the Node client suspends what else of its lite topic has come with it, and at"
        " RocketMQ all of these came again as the second attempt; why is not known. At PopMQ that does not count.",
    ),
    Fault(
        "fifo-retry",
        "go",
        (ROCKETMQ,),
        (AssertionError,),
        "^$",
        "In ordered mode the Go client goes on with the next message of a message group while it retries one. PopMQ"
        " does not tell it to work in order, and gives it one message of a group at a time.",
    ),
)


def fault_at(scenario: str, language: str, server: str) -> int | None:
    """The index of the reason why this cell fails; None if it has to pass."""
    return next((index for index, each in enumerate(FAULTS) if each.is_at(scenario, language, server)), None)
