"""A move between two PopMQ servers under load, while the mover and both servers are killed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from proof.history.moves import Consumed, Sent, judge
from tests.moving.fire import Fire, Part, again, make_at_popmq, show, told
from tests.support.server_process import ServerProcess

KILLS = 12
PARTS = [Part("flights", in_order=True, groups=["radar", "tower"]), Part("orders", in_order=False, groups=["billing"])]


@pytest.mark.timeout(600)
@pytest.mark.row("O9")
@pytest.mark.parametrize("back", [False, True], ids=["there", "there-and-back"])
async def test_nothing_is_lost_and_message_groups_keep_their_order(tmp_path: Path, back: bool) -> None:
    old, new = (ServerProcess(f"sqlite:///{tmp_path}/{name}.db") for name in ("old", "new"))
    await asyncio.gather(old.start(), new.start())
    try:
        await make_at_popmq(old.endpoint, PARTS)
        victims = {name: lambda server=server: again(server) for name, server in (("old", old), ("new", new))}
        words = ["--from", old.endpoint, "--to", new.endpoint]
        fire = Fire(tmp_path, old.endpoint, new.endpoint, PARTS, victims, words)
        verdict = await fire.run(KILLS, 100, back=back)
        show(told(fire, verdict))
        assert verdict.violations == []
        assert {each.side for each in fire.sent} == {each.side for each in fire.consumed} == {"old", "new"}
    finally:
        await asyncio.gather(old.stop(), new.stop())


def sent(number: int, side: str = "old") -> Sent:
    return Sent("t", "g", number, f"g:{number}", side, 1)


def got(number: int, side: str = "old") -> Consumed:
    return Consumed("c", "t", "g", f"g:{number}", side, 1)


def test_the_judge_sees_what_is_lost_out_of_order_and_double() -> None:
    groups = {"t": ["c"]}
    assert judge([sent(0), sent(1)], [got(0), got(1)], groups).violations == []
    (lost,) = judge([sent(0), sent(1)], [got(0)], groups).violations
    assert "g:1 of t, confirmed by old, did not reach c" in str(lost)
    (early,) = judge([sent(0), sent(1)], [got(1, "new"), got(0)], groups).violations
    assert "c got g:0 at old after number 1 at new" in str(early)
    turned = [got(1), got(0)]
    assert len(judge([sent(0), sent(1)], turned, groups).violations) == 1
    assert judge([sent(0), sent(1)], turned, groups, lax="old").violations == []
    fine = judge([sent(0), sent(1)], [got(0), got(1), got(0, "new"), got(1)], groups)
    assert (fine.violations, fine.doubles) == ([], {"at both sides": 1, "again at the old side": 1})
