"""The SQL functions are made from the server's own constants."""

from __future__ import annotations

import re

import pytest

from popserver.database import migrate
from popserver.model import message
from popserver.model.states import Event, State

TEXT = (migrate.script_location() / "functions.sql").read_text()


def test_every_word_has_a_value_and_every_value_is_used() -> None:
    words = set(re.findall(r"(?<!:):([a-z_]+)", TEXT))
    assert words == {"schema", *migrate.VALUES}
    with pytest.raises(KeyError, match="unknown"):
        migrate.render("SELECT :unknown", "public")


def test_the_text_repeats_no_constant() -> None:
    """What a server's constant says, the file names by a word."""
    limits = [value for value in migrate.VALUES.values() if isinstance(value, int) and value > 255]
    states = [*State, *(event for event in Event if event is not Event.RECEIVE)]
    code = "\n".join(line for line in TEXT.splitlines() if not line.lstrip().startswith("--"))
    assert [limit for limit in limits if re.search(rf"\b{limit}\b", code)] == []
    assert [name for name in states if f"'{name}'" in code] == []
    assert [name for name in message.RESERVED_PROPERTIES if f"'{name}'" in code] == []


def test_values_are_literals() -> None:
    made = migrate.render(TEXT, "shop")
    assert made.count("CREATE FUNCTION shop.popmq_") == len(migrate.NAMES)
    assert "d.state IN ('INFLIGHT')" in made
    assert "d.state NOT IN ('ACKED_IN_TRANSACTION', 'ACKED_PROVISIONALLY')" in made
    assert f"octet_length(body) > {message.BODY_BYTES_MAX}" in made
    assert migrate.render(":dead_letter_prefix||:type_fifo::text", "s") == "'%DLQ%'||'FIFO'::text"
