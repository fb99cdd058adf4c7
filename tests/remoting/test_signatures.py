"""Signatures of requests to brokers that ask who is calling."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest

from popclient.remoting.signatures import AccessKey

pytestmark = pytest.mark.row("O9")


def test_it_covers_the_values_in_the_order_of_their_names_and_the_body() -> None:
    fields = {"topic": "orders", "Group": "billing", "perm": "6"}
    signed = AccessKey("rocket", "secret").signed(fields, b"body")
    digest = hmac.new(b"secret", b"rocket" + b"billing" + b"6" + b"orders" + b"body", hashlib.sha1).digest()
    assert signed == {**fields, "AccessKey": "rocket", "Signature": base64.b64encode(digest).decode()}


def test_without_a_key_nothing_is_signed() -> None:
    assert AccessKey().signed({"topic": "orders"}, b"") == {"topic": "orders"}


def test_the_secret_is_not_shown() -> None:
    assert "secret" not in repr(AccessKey("rocket", "secret"))
