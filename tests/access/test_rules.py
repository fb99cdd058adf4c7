"""Who may do what, and what a signature is: the rules alone."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from popserver.access import rules as access_rules
from popserver.access.rules import Policies, Policy, User
from popserver.model.acl import Action, Effect, ResourceKind, Right
from popserver.model.errors import BadRequest
from popserver.model.names import Resource

SECRET = "correct horse"
DATE = "20261120T170000Z"
DIGEST = hmac.new(SECRET.encode(), DATE.encode(), hashlib.sha1).hexdigest()


def a_policy(
    effect: str = "ALLOW",
    actions: str = "PUB,SUB",
    resource: str = "topic:orders",
    *,
    namespace: str = "",
    policy_id: int = 1,
) -> Policy:
    kind, _, pattern = resource.partition(":")
    return Policy(
        policy_id,
        "alice",
        Effect(effect),
        tuple(map(Action, actions.split(","))),
        ResourceKind(kind.upper()),
        namespace,
        pattern,
        0,
    )


def a_right(action: str = "PUB", resource: str = "topic:orders", *, namespace: str = "") -> Right:
    kind, _, name = resource.partition(":")
    return Right(Action(action), ResourceKind(kind.upper()), Resource(namespace, name))


@pytest.mark.parametrize(
    ("policies", "right", "allowed"),
    [
        ([], a_right(), False),
        ([a_policy()], a_right("PUB"), True),
        ([a_policy()], a_right("SUB"), True),
        ([a_policy(actions="SUB")], a_right("PUB"), False),
        ([a_policy()], a_right(resource="topic:orders2"), False),
        ([a_policy()], a_right("SUB", "group:orders"), False),
        ([a_policy(resource="topic:orders*")], a_right(resource="topic:orders2"), True),
        ([a_policy(resource="topic:orders*")], a_right(resource="topic:orders"), True),
        ([a_policy(resource="topic:orders*")], a_right(resource="topic:order"), False),
        ([a_policy(resource="topic:*")], a_right(resource="topic:whatever"), True),
        ([a_policy(resource="topic:*")], a_right("SUB", "group:whatever"), False),
        ([a_policy(namespace="eu")], a_right(), False),
        ([a_policy(namespace="eu")], a_right(namespace="eu"), True),
        ([a_policy(resource="topic:*")], a_right(namespace="eu"), False),
        # DENY wins, whichever is more specific and whichever came first.
        ([a_policy("DENY", resource="topic:*"), a_policy()], a_right(), False),
        ([a_policy(), a_policy("DENY", resource="topic:ord*")], a_right(), False),
        ([a_policy(resource="topic:*"), a_policy("DENY")], a_right(), False),
        ([a_policy(resource="topic:*"), a_policy("DENY")], a_right(resource="topic:others"), True),
        ([a_policy(), a_policy("DENY", "SUB")], a_right("PUB"), True),
        # A group's dead letters are the group's.
        ([a_policy(actions="SUB", resource="group:billing")], a_right("SUB", "topic:%DLQ%billing"), True),
        ([a_policy(actions="SUB", resource="group:billing")], a_right("SUB", "topic:%DLQ%others"), False),
        ([a_policy(actions="SUB", resource="group:billing")], a_right("PUB", "topic:%DLQ%billing"), False),
        ([a_policy(actions="SUB", resource="group:billing")], a_right("SUB", "topic:%RETRY%billing"), True),
        ([a_policy(actions="SUB", resource="group:billing")], a_right("SUB", "topic:%RETRY%others"), False),
        # A policy that allows topics allows none of a group's own; one that denies them counts.
        ([a_policy(actions="SUB", resource="topic:*")], a_right("SUB", "topic:%DLQ%billing"), False),
        ([a_policy(actions="SUB", resource="topic:*")], a_right("SUB", "topic:%RETRY%billing"), False),
        ([a_policy(actions="SUB", resource="topic:%DLQ%billing")], a_right("SUB", "topic:%DLQ%billing"), False),
        (
            [a_policy(actions="SUB", resource="group:billing"), a_policy("DENY", "SUB", "topic:%DLQ%*")],
            a_right("SUB", "topic:%DLQ%billing"),
            False,
        ),
        (
            [a_policy(resource="topic:*"), a_policy("DENY", "SUB", "group:billing")],
            a_right("SUB", "topic:%DLQ%billing"),
            False,
        ),
        (
            [a_policy(actions="SUB", resource="group:billing", namespace="eu")],
            a_right("SUB", "topic:%DLQ%billing"),
            False,
        ),
    ],
)
def test_a_verdict(policies: list[Policy], right: Right, allowed: bool) -> None:
    judge = Policies(policies)
    assert judge.verdict(right).allowed is allowed
    assert judge.verdict(right).allowed is allowed, "and so it stays"


_names = st.sampled_from(["orders", "orders2", "bills", "%DLQ%orders", "%DLQ%bills"])
_patterns = st.sampled_from(["*", "orders", "orders*", "o*", "bills", "%DLQ%*", "%DLQ%orders"])
_policies = st.builds(
    a_policy,
    effect=st.sampled_from(["ALLOW", "DENY"]),
    actions=st.sampled_from(["PUB", "SUB", "PUB,SUB"]),
    resource=st.builds(lambda kind, pattern: f"{kind}:{pattern}", st.sampled_from(["topic", "group"]), _patterns),
    namespace=st.sampled_from(["", "eu"]),
)
_rights = st.builds(
    a_right,
    action=st.sampled_from(["PUB", "SUB"]),
    resource=st.builds(lambda kind, name: f"{kind}:{name}", st.sampled_from(["topic", "group"]), _names),
    namespace=st.sampled_from(["", "eu"]),
)


@settings(max_examples=300)
@given(st.lists(_policies, max_size=6), _policies, _rights)
def test_a_denial_never_widens_and_a_permission_never_narrows(
    policies: list[Policy], more: Policy, right: Right
) -> None:
    before = Policies(policies).verdict(right).allowed
    after = Policies([*policies, more]).verdict(right).allowed
    assert after <= before if more.effect is Effect.DENY else after >= before


@settings(max_examples=200)
@given(st.permutations([a_policy("DENY", "SUB", "topic:o*"), a_policy(), a_policy(resource="topic:*")]), _rights)
def test_the_order_of_policies_means_nothing(policies: list[Policy], right: Right) -> None:
    assert Policies(policies).verdict(right).allowed is Policies(sorted(policies, key=str)).verdict(right).allowed


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_rules, "REMEMBERED_MAX", 10)
    judge = Policies([a_policy(resource="topic:n*")])
    for number in range(100):
        assert judge.verdict(a_right(resource=f"topic:n{number}")).allowed
    assert judge.verdict(a_right(resource=f"topic:n{'x' * 100_000}")).allowed
    assert len(judge._remembered) <= 10
    assert all(len(right.name.name) < 1_000 for right in judge._remembered)


def test_a_refusal_names_the_way_out() -> None:
    right = a_right(resource="topic:bills", namespace="eu")
    assert access_rules.why("alice", right, Policies([]).verdict(right)) == (
        "user 'alice' may not PUB topic 'eu/bills': no policy allows it; allow it with:"
        " popmq acl policy add alice allow PUB topic:bills --namespace eu"
    )
    denied = Policies([a_policy("DENY", policy_id=7)]).verdict(a_right())
    assert access_rules.why("alice", a_right(), denied) == (
        "user 'alice' may not PUB topic 'orders': policy 7 (DENY PUB,SUB topic:orders) denies it;"
        " remove it with: popmq acl policy remove 7"
    )


def test_a_refusal_of_dead_letters_names_the_right_on_the_group() -> None:
    right = a_right("SUB", "topic:%DLQ%billing")
    assert access_rules.why("alice", right, Policies([a_policy(resource="topic:*")]).verdict(right)) == (
        "user 'alice' may not SUB topic '%DLQ%billing': no policy allows it; allow it with:"
        " popmq acl policy add alice allow SUB group:billing"
    )


def test_an_endless_name_makes_no_endless_sentence() -> None:
    right = a_right(resource=f"topic:{'x' * 1_000_000}")
    assert len(access_rules.why("alice", right, Policies([]).verdict(right))) < 1_000


@pytest.mark.parametrize("digest", [DIGEST, DIGEST.upper()])
@pytest.mark.parametrize("credential", ["alice", "alice//Rocketmq", "alice/cn-hangzhou/RocketMQ"])
@pytest.mark.parametrize("separator", [", ", ","])
def test_every_clients_dialect_is_read(credential: str, digest: str, separator: str) -> None:
    fields = separator.join([f"Credential={credential}", "SignedHeaders=x-mq-date-time", f"Signature={digest}"])
    signature = access_rules.read_authorization(f"MQv2-HMAC-SHA1 {fields}")
    assert signature is not None
    assert signature.access_key == "alice"
    assert access_rules.is_signed(SECRET, DATE, signature.digest)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "MQv2-HMAC-SHA1",
        "MQv2-HMAC-SHA1 ",
        "MQv2-HMAC-SHA1 Credential=, SignedHeaders=x-mq-date-time, Signature=",
        f"MQv2-HMAC-SHA256 Credential=alice, Signature={DIGEST}",
        f"Credential=alice, Signature={DIGEST}",
        "Bearer alice",
        "MQv2-HMAC-SHA1 Credential=/alice, Signature=00",
    ],
)
def test_what_is_no_signature(header: str) -> None:
    assert access_rules.read_authorization(header) is None


@pytest.mark.parametrize("digest", ["", "00", DIGEST[:-1], DIGEST + "0", DIGEST[::-1], "ä" * 40])
def test_a_wrong_digest(digest: str) -> None:
    assert not access_rules.is_signed(SECRET, DATE, digest)
    assert not access_rules.is_signed(SECRET + "x", DATE, DIGEST)
    assert not access_rules.is_signed(SECRET, DATE + " ", DIGEST)


@settings(max_examples=300)
@given(st.text(max_size=200))
def test_no_header_breaks_the_reader(text: str) -> None:
    for header in (text, f"MQv2-HMAC-SHA1 {text}", f"MQv2-HMAC-SHA1 Credential=alice, Signature={text}"):
        signature = access_rules.read_authorization(header)
        if signature is not None and not set(signature.digest) & set("\ud800"):
            assert not access_rules.is_signed("another secret", DATE, signature.digest)


@pytest.mark.parametrize("access_key", ["", "a b", "a/b", "a,b", "a=b", "ä", "a\n", "x" * 65])
def test_an_illegal_access_key(access_key: str) -> None:
    with pytest.raises(BadRequest, match="access key"):
        access_rules.check_access_key(access_key)


@pytest.mark.parametrize("access_key", ["a", "alice@example.com", "team-1.reader_2", "x" * 64])
def test_a_legal_access_key(access_key: str) -> None:
    access_rules.check_access_key(access_key)


@pytest.mark.parametrize("secret", ["", "short", "x" * 257, "with a blank", "line\nbreak9", "ümlaut-geheim"])
def test_an_illegal_secret_is_not_shown(secret: str) -> None:
    with pytest.raises(BadRequest, match="the secret") as refused:
        access_rules.check_secret(secret)
    assert not secret or secret not in refused.value.sentence


@pytest.mark.parametrize(
    ("actions", "kind", "pattern", "namespace", "says"),
    [
        ((), "TOPIC", "orders", "", "names no action"),
        (("PUB",), "GROUP", "billing", "", "PUB is for topics"),
        (("SUB",), "TOPIC", "", "", "is not allowed; use a name"),
        (("SUB",), "TOPIC", "or*ders", "", "is not allowed; use a name"),
        (("SUB",), "TOPIC", "**", "", "is not allowed; use a name"),
        (("SUB",), "TOPIC", "a b", "", "is not allowed; use a name"),
        (("SUB",), "TOPIC", "x" * 256, "", "is not allowed; use a name"),
        (("SUB",), "TOPIC", "orders", "a b", "namespace"),
    ],
)
def test_an_illegal_policy(actions: tuple[str, ...], kind: str, pattern: str, namespace: str, says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        access_rules.check_policy(tuple(map(Action, actions)), ResourceKind(kind), Resource(namespace, pattern))


def test_no_text_of_a_user_holds_the_secret() -> None:
    user = User("alice", SECRET)
    assert SECRET not in f"{user} {user!r}"
