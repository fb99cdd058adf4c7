"""What a mirror may report: a refusal names the value and the limit."""

from __future__ import annotations

from typing import Any

import pytest

from popserver.mirrors.rules import LEASE_MS_MAX, LEASE_MS_MIN, MirrorFacts, check
from popserver.model.errors import BadRequest
from popserver.model.states import MirrorState

FACTS = MirrorFacts("m", "old:8081;older:8081", "new:8081", "", "%DLQ%billing", "", "0aF_-", "ship", MirrorState.HELD)
REFUSED = [
    ({"mirror_id": ""}, "mirror_id '' is not one of 1 to 64 characters out of A-Z"),
    ({"mirror_id": "a b"}, "mirror_id 'a b' is not"),
    ({"mirror_id": "a\n"}, r"mirror_id 'a\\n' is not"),
    ({"mirror_id": "m" * 65}, "mirror_id 'm"),
    ({"owner": ""}, "owner '' is not one of 1 to 64"),
    ({"owner": "ä"}, "owner 'ä' is not"),
    ({"source": " "}, "source is blank"),
    ({"target": ""}, "target is blank"),
    ({"target": "n" * 1_001}, "target has 1,001 characters, at most 1,000 are allowed"),
    ({"source": "me:secret@old:8081"}, "source has an @, which ends a secret in an address"),
    ({"source": "old\x00"}, r"source 'old\\x00' has a control character"),
    ({"topic": ""}, "topic '' is not a name of 1 to 255 characters"),
    ({"topic": "a.b"}, r"topic 'a\.b' is not"),
    ({"topic": "t" * 256}, "topic 'ttt"),
    ({"consumer_group": "a b"}, "group 'a b' is not a name"),
    ({"namespace": "a/b"}, "namespace 'a/b' is not allowed"),
    ({"namespace": "n" * 128}, "namespace 'nnn"),
    ({"host": ""}, "host is blank"),
    ({"host": "h" * 256}, "host has 256 characters, at most 255"),
    ({"sentence": "s" * 2_001}, "sentence has 2,001 characters, at most 2,000"),
    ({"sentence": "a\x1b[1m"}, "sentence .* has a control character"),
    ({"position": "p" * 16_385}, "position has 16,385 bytes, at most 16,384 are allowed"),
    ({"position": "ä" * 8_193}, "position has 16,386 bytes"),
    ({"position": "\0"}, "position has the character U\\+0000"),
    ({"handed": -1}, "handed is -1; it must be at least 0"),
    ({"repeated": -1}, "repeated is -1"),
    ({"dead_letters": -(2**63)}, "dead_letters is -9"),
    ({"scheduled": -1}, "scheduled is -1"),
    ({"bytes": -1}, "bytes is -1"),
    ({"lag": -2}, "lag is -2; it must be at least -1"),
]


@pytest.mark.parametrize(("other", "sentence"), REFUSED)
def test_a_value_that_is_not_allowed_is_named(other: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadRequest, match=sentence):
        check(FACTS._replace(**other), LEASE_MS_MIN)


@pytest.mark.parametrize("lease_ms", [0, LEASE_MS_MIN - 1, LEASE_MS_MAX + 1, -(2**63) * 1_000])
def test_a_lease_has_limits(lease_ms: int) -> None:
    with pytest.raises(BadRequest, match=r"lease is .* s; give 5 to 300 s"):
        check(FACTS, lease_ms)


def test_what_is_allowed() -> None:
    check(FACTS, LEASE_MS_MIN)
    check(FACTS._replace(mirror_id="m" * 64, topic="t" * 255, consumer_group="g" * 255), LEASE_MS_MAX)
    check(FACTS._replace(position="\n" * 16_384, sentence="ä" * 2_000, lag=2**63 - 1, bytes=2**63 - 1), LEASE_MS_MAX)
