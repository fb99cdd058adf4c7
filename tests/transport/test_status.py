"""Every refusal of the house has a code on the wire."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from popproto.v2 import definition_pb2 as pb
from popserver.model.errors import InvalidReceiptHandle, PopError, TopicNotFound
from popserver.transport import status


def every_error(root: type[PopError] = PopError) -> Iterator[type[PopError]]:
    yield root
    for child in root.__subclasses__():
        yield from every_error(child)


def test_every_error_has_a_code() -> None:
    missing = [error.__name__ for error in every_error() if error not in status.CODES]
    assert missing == []


def test_the_sentence_travels() -> None:
    said = status.of(TopicNotFound("topic 'x' does not exist"))
    assert (said.code, said.message) == (pb.TOPIC_NOT_FOUND, "topic 'x' does not exist")
    assert (status.of(None).code, status.of(None).message) == (pb.OK, "OK")


def test_a_name_without_end_is_cut() -> None:
    sentence = status.of(TopicNotFound(f"topic '{'x' * 70_000}' does not exist")).message
    assert len(sentence) == 2_000
    assert sentence.endswith("x…")


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        ([None, None], pb.OK),
        ([InvalidReceiptHandle("a"), InvalidReceiptHandle("b")], pb.INVALID_RECEIPT_HANDLE),
        ([None, InvalidReceiptHandle("a")], pb.MULTIPLE_RESULTS),
    ],
)
def test_several_outcomes_have_one_status(outcomes: list[PopError | None], code: int) -> None:
    assert status.combined([status.of(outcome) for outcome in outcomes]).code == code


def test_a_mixed_status_counts_the_refused() -> None:
    mixed = status.combined([status.OK, status.of(InvalidReceiptHandle("a")), status.OK])
    assert mixed.message.startswith("1 of 3 entries were refused")
