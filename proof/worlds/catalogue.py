"""The worlds that are walked. Those of one message have a closed space; those of two are walked to a depth."""

from __future__ import annotations

from proof.worlds.law import Rules

CLOSED: dict[str, Rules] = {
    "simple": Rules(1),
    "push": Rules(1, is_push=True),
    "simple in order": Rules(1, in_order=True),
    "push in order": Rules(1, is_push=True, in_order=True),
}
TO_A_DEPTH: dict[str, Rules] = {
    "two simple": Rules(2),
    "two push": Rules(2, is_push=True),
    "two simple in order": Rules(2, in_order=True),
    "two push in order": Rules(2, is_push=True, in_order=True),
    "two groups": Rules(2, 2),
    "two groups in order": Rules(2, 2, is_push=True, in_order=True),
}
