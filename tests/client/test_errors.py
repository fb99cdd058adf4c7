"""Code → exception: every code of the protocol, and what a caller can read from the exception."""

from __future__ import annotations

import inspect
import pickle

import pytest

from popclient import errors
from popclient.errors import EXCEPTION_OF, PopError, check, error_of
from popproto.v2 import definition_pb2 as pb

FAILURES = [value for value in pb.Code.values() if value != pb.OK]


def test_the_table_covers_every_code_but_ok() -> None:
    assert set(EXCEPTION_OF) == set(FAILURES)


@pytest.mark.parametrize("code", FAILURES, ids=pb.Code.Name)
def test_an_exception_carries_code_name_and_the_servers_sentence(code: pb.Code.ValueType) -> None:
    raised = error_of(pb.Status(code=code, message="because"))
    assert type(raised) is EXCEPTION_OF[code]
    assert (raised.code, raised.name, raised.sentence) == (code, pb.Code.Name(code), "because")
    again = pickle.loads(pickle.dumps(raised))
    assert (type(again), str(again)) == (type(raised), str(raised))


def test_a_code_from_the_future_is_an_unexpected_answer() -> None:
    status = pb.Status()
    status.ParseFromString(pb.Status(message="new").SerializeToString() + b"\x08" + b"\xcb\x84\x03")
    raised = error_of(status)
    assert type(raised) is errors.UnexpectedAnswer
    assert raised.name == f"CODE_{raised.code}"


def test_the_name_of_a_code_is_shown_once() -> None:
    """Some sentences of the server begin with it."""
    raised = error_of(pb.Status(code=pb.INVALID_RECEIPT_HANDLE, message="INVALID_RECEIPT_HANDLE: it is over"))
    assert str(raised) == "INVALID_RECEIPT_HANDLE (40013): it is over"
    assert raised.sentence == "it is over"


def test_ok_raises_nothing() -> None:
    check(pb.Status(code=pb.OK))


def test_only_what_may_pass_is_retryable() -> None:
    retryable = {
        name
        for name, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, PopError) and kind.retryable
    }
    assert retryable == {
        "RequestTimeout",
        "ServerError",
        "ServerTimeout",
        "TooManyRequests",
        "Unreachable",
    }


def test_every_exception_is_public() -> None:
    import popclient

    made = {n for n, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, PopError)}
    assert made <= set(popclient.__all__)
