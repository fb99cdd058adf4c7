"""`popmq acl`: with a server, and straight on a database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import popserver
from popserver import EmbeddedBroker
from tests.support.builders import START
from tests.support.shell import Shell, installed

SECRET = "correct-horse-battery"
ROOT_SECRET = "root-has-a-secret"


@pytest.fixture
def guarded() -> Iterator[EmbeddedBroker]:
    with popserver.embedded(
        manual_clock=START, auto_create=False, auth=True, admin_access_key="root", admin_secret=ROOT_SECRET
    ) as running:
        yield running


@pytest.fixture
def root(guarded: EmbeddedBroker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    """A shell of the admin's."""
    monkeypatch.setenv("POPMQ_ACCESS_KEY", "root")
    monkeypatch.setenv("POPMQ_ACCESS_SECRET", ROOT_SECRET)
    return Shell(guarded.endpoint, capsys, monkeypatch, guarded)


def test_a_users_life(shell: Shell) -> None:
    made = shell.ok("acl", "user", "add", "alice")
    assert made.lines[0] == "created user alice"
    assert made.lines[1].startswith("its secret, which is shown only now: ")
    secret = made.lines[1].rpartition(" ")[2]
    assert len(secret) == 43
    assert shell.json("acl", "user", "add", "root", "--admin")["is_admin"] is True
    assert secret not in shell.ok("acl", "user", "list").out
    assert [user["access_key"] for user in shell.json("acl", "user", "list")] == ["alice", "root"]
    assert shell.ok("acl", "user", "disable", "alice").out == "user alice is disabled\n"
    assert shell.json("acl", "user", "list")[0]["disabled_at"]
    assert shell.ok("acl", "user", "enable", "alice").out == "user alice is enabled\n"
    rotated = shell.json("acl", "user", "rotate", "alice", "--yes")
    assert len(rotated["secret"]) == 43
    assert rotated["secret"] != secret
    assert shell.ok("acl", "user", "remove", "alice", "--yes").out == "removed user alice\n"
    assert shell("acl", "user", "remove", "alice", "--yes").status == 4


def test_a_secret_that_was_given_is_not_shown(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    said = shell.ok("acl", "user", "add", "alice", "--secret-from", "stdin", stdin=f"{SECRET}\n".encode())
    assert said.out == "created user alice\n"
    monkeypatch.setenv("ALICES_SECRET", f"{SECRET}-2")
    rotated = shell.json("acl", "user", "rotate", "alice", "--yes", "--secret-from", "env:ALICES_SECRET")
    assert "secret" not in rotated
    typed = iter([f"{SECRET}-3", f"{SECRET}-3", f"{SECRET}-4", "something else"])
    monkeypatch.setattr("getpass.getpass", lambda _prompt: next(typed))
    rotated = shell.ok("acl", "user", "rotate", "alice", "--yes", "--secret-from", "prompt")
    assert rotated.out == "user alice has a new secret\n"
    refused = shell("acl", "user", "rotate", "alice", "--yes", "--secret-from", "prompt")
    assert (refused.status, refused.out) == (2, "")
    assert "the two secrets differ" in refused.err
    assert SECRET not in refused.err


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["user", "add", "a b"], 1, "access key 'a b'"),
        (["user", "add", "alice", "--secret-from", "s3cret-typed"], 2, "stdin, prompt or env:NAME"),
        (["user", "add", "alice", "--secret-from", "env:NOT_THERE"], 2, "the environment has no NOT_THERE"),
        (["user", "rotate", "nobody", "--yes"], 4, "popmq acl user add nobody"),
        (["user", "remove", "nobody"], 2, "confirm it with --yes"),
        (["policy", "add", "nobody", "allow", "pub", "orders"], 4, "does not exist"),
        (["policy", "add", "nobody", "permit", "pub", "orders"], 2, "invalid choice"),
        (["policy", "add", "nobody", "allow", "read", "orders"], 2, "'read' is no action"),
        (["policy", "add", "nobody", "allow", "pub", "queue:orders"], 2, "'queue:orders' is no resource"),
        (["policy", "add", "nobody", "allow", "pub", "group:"], 2, "'group:' is no resource"),
        (["policy", "remove", "17", "--yes"], 4, "policy 17 does not exist"),
        (["policy", "remove", "none"], 2, "no whole number"),
        (["explain", "nobody", "pub", "orders"], 4, "does not exist"),
        (["explain", "nobody", "administer", "orders"], 2, "invalid choice"),
    ],
)
def test_a_refusal_is_one_sentence(shell: Shell, words: list[str], status: int, says: str) -> None:
    said = shell("acl", *words)
    assert (said.status, said.out) == (status, "")
    assert says in said.err
    assert "s3cret" not in said.err
    assert said.err.count("\n") == 1


def test_policies_are_added_explained_listed_removed(shell: Shell) -> None:
    shell.ok("acl", "user", "add", "alice")
    refused = shell("acl", "explain", "alice", "pub", "orders")
    assert refused.status == 1
    way_out = "popmq acl policy add alice allow PUB topic:orders"
    assert refused.out.endswith(f"allow it with: {way_out}\n")
    shell.ok(*way_out.split()[1:])
    said = shell.ok("acl", "explain", "alice", "PUB", "topic:orders")
    assert said.out == "user 'alice' may PUB topic 'orders': policy 1 (ALLOW PUB topic:orders) allows it\n"
    shell.ok("--namespace", "eu", "acl", "policy", "add", "alice", "deny", "PUB,SUB", "topic:ord*")
    shell.ok("acl", "policy", "add", "alice", "allow", "sub", "group:*")
    listed = shell.ok("acl", "policy", "list").lines
    assert [line.split()[:5] for line in listed[1:]] == [
        ["1", "alice", "ALLOW", "PUB", "topic:orders"],
        ["2", "alice", "DENY", "PUB,SUB", "topic:ord*"],
        ["3", "alice", "ALLOW", "SUB", "group:*"],
    ]
    told = shell("--json", "--namespace", "eu", "acl", "explain", "alice", "SUB", "orders")
    assert told.status == 1
    assert (told.document["allowed"], told.document["policy"]["id"]) == (False, 2)
    assert shell.json("acl", "policy", "remove", "2", "--yes")["effect"] == "DENY"
    assert [each["id"] for each in shell.json("acl", "policy", "list", "alice")] == [1, 3]
    assert shell.json("acl", "policy", "list", "bob") == []


def test_a_name_alone_is_a_topics_and_that_is_said(shell: Shell) -> None:
    shell.ok("acl", "user", "add", "till")
    shell.ok("acl", "policy", "add", "till", "allow", "SUB", "group:billing")
    said = shell("acl", "explain", "till", "SUB", "billing")
    hint = "billing is taken for a topic; for the consumer group of that name write group:billing"
    assert said.status == 1
    assert said.lines[0].startswith("user 'till' may not SUB topic 'billing': ")
    assert said.lines[1:] == ["", f"hint: {hint}"]
    assert shell("--json", "acl", "explain", "till", "SUB", "billing").document["hints"] == [hint]
    for words in (("SUB", "topic:billing"), ("SUB", "group:billing"), ("PUB", "billing")):
        said = shell("acl", "explain", "till", *words)
        assert len(said.lines) == 1, "nobody sends to a group, and who says the kind means it"
        assert shell("--json", "acl", "explain", "till", *words).document["hints"] == []


def test_every_way_out_that_is_named_leads_out(root: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a server that refuses everything to a message sent and received, by its own sentences."""
    root.ok("topic", "create", "orders")
    root.ok("group", "create", "billing")
    root.ok("acl", "user", "add", "alice", "--secret-from", "stdin", stdin=SECRET.encode())
    keys = {"root": ROOT_SECRET, "alice": SECRET}

    def sign_as(name: str) -> None:
        monkeypatch.setenv("POPMQ_ACCESS_KEY", name)
        monkeypatch.setenv("POPMQ_ACCESS_SECRET", keys[name])

    for words in (
        ("message", "send", "orders", "hello"),
        ("message", "receive", "orders", "--group", "billing", "--wait", "5s"),
    ):
        for _ in range(4):
            sign_as("alice")
            said = root(*words)
            if said.status == 0:
                break
            assert said.status == 1
            way_out = said.err.rpartition("popmq acl ")[2].split("\n")[0]
            sign_as("root")
            root.ok("acl", *way_out.split())
        assert said.status == 0, said
    assert "hello" in said.out
    sign_as("alice")
    assert root("topic", "list").status == 1
    monkeypatch.setenv("POPMQ_ACCESS_SECRET", "wrong-secret")
    refused = root("message", "send", "orders", "hello")
    assert refused.status == 1
    assert "POPMQ_ACCESS_SECRET" in refused.err
    assert "wrong-secret" not in refused.err


def test_who_signs_may_be_an_argument_and_the_secret_is_asked_for(
    guarded: EmbeddedBroker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("getpass.getpass", lambda prompt: ROOT_SECRET if prompt == "secret of root: " else "")
    shell = Shell(guarded.endpoint, capsys, monkeypatch, guarded)
    said = shell("--access-key", "root", "topic", "list", terminal=True)
    assert (said.status, said.out) == (0, "no topics\n")


def test_nothing_typed_is_no_secret(
    guarded: EmbeddedBroker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(_prompt: str) -> str:
        raise EOFError  # Ctrl-D

    monkeypatch.setattr("getpass.getpass", ended)
    shell = Shell(guarded.endpoint, capsys, monkeypatch, guarded)
    said = shell("--access-key", "root", "topic", "list", terminal=True)
    assert said.status == 2
    assert "no secret was typed; type it, or set POPMQ_ACCESS_SECRET" in said.err
    monkeypatch.setenv("POPMQ_ACCESS_SECRET", ROOT_SECRET)
    said = shell("--access-key", "root", "acl", "user", "add", "alice", "--secret-from", "prompt", terminal=True)
    assert said.status == 2
    assert "no secret was typed; type it, or give --secret-from stdin or --secret-from env:NAME" in said.err


def test_without_a_server(sqlite_url: str) -> None:
    at = ("--database-url", sqlite_url)
    made = installed("acl", "user", "add", "root", "--admin", *at)
    assert (made.status, made.err) == (0, ""), made
    assert made.lines[0] == "created admin root"
    assert installed("acl", "user", "add", "root", *at).status == 1
    assert (
        installed("acl", "policy", "add", "root", "deny", "PUB", "topic:orders", "--namespace", "eu", *at).status == 0
    )
    listed = installed("--json", "acl", "policy", "list", *at)
    assert [(each["namespace"], each["pattern"]) for each in listed.document] == [("eu", "orders")]
    assert installed("acl", "explain", "root", "PUB", "orders", *at).out.endswith("admins may do everything\n")
    assert installed("acl", "user", "remove", "root", "--yes", *at).status == 0, "without a server nobody is the last"
    with popserver.embedded(sqlite_url):
        refused = installed("acl", "user", "list", *at)
    assert refused.status == 1
    assert "in use by another popmq" in refused.err
    assert installed("acl", "user", "list", "--database-url", "mysql://nowhere/x").status == 1


def test_the_first_admin_of_a_server(tmp_path: Path) -> None:
    at = ("--database-url", f"sqlite:///{tmp_path / 'popmq.db'}")
    refused = installed("serve", "--auth", "--port", "0", *at)
    assert refused.status == 1
    assert "popmq acl user add NAME --admin --database-url URL" in refused.err
    secret = installed("--json", "acl", "user", "add", "root", "--admin", *at).document["secret"]
    with popserver.embedded(tmp_path / "popmq.db", auth=True) as broker:
        keys = {"POPMQ_ACCESS_KEY": "root", "POPMQ_ACCESS_SECRET": secret}
        assert installed("--endpoint", broker.endpoint, "topic", "list", **keys).out == "no topics\n"
        assert installed("--endpoint", broker.endpoint, "topic", "list").status == 1


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"POPMQ_ADMIN_SECRET": "s3cret-s3cret"}, "the first admin needs both"),
        ({"POPMQ_ADMIN_ACCESS_KEY": "root"}, "the first admin needs both"),
        ({"POPMQ_ADMIN_ACCESS_KEY": "root", "POPMQ_ADMIN_SECRET": "s3cret"}, "the secret has 6 characters"),
        ({"POPMQ_ADMIN_ACCESS_KEY": "a/b", "POPMQ_ADMIN_SECRET": "s3cret-s3cret"}, "access key 'a/b'"),
        ({"POPMQ_DATABASE_URL": "postgresql://popmq:s3cret@nowhere:99999/x"}, ""),
        ({"POPMQ_DURABILITY": "none", "POPMQ_ADMIN_SECRET": "s3cret-s3cret"}, "durability='none'"),
        ({"POPMQ_AUTH_MAX_AGE": "soon"}, "auth_max_age='soon'"),
        ({"POPMQ_MAX_SEND_RATE": "-1"}, "max_send_rate='-1'"),
    ],
)
def test_a_bad_setting_is_told_without_a_secret(sqlite_url: str, environment: dict[str, str], says: str) -> None:
    said = installed("serve", "--auth", "--port", "0", **({"POPMQ_DATABASE_URL": sqlite_url} | environment))
    assert said.status in {1, 2}
    assert says in said.err
    assert "s3cret" not in said.out + said.err


def test_a_secret_under_a_misspelled_name_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "popmq.toml").write_text('admin_secert = "s3cret-s3cret"\nadmin_secret = 17171717\n')
    monkeypatch.chdir(tmp_path)
    said = installed("serve")
    assert said.status == 2
    assert "admin_secert" in said.err
    assert "s3cret-" not in said.err
    assert "17171717" not in said.err
