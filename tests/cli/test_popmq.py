"""The command as a whole: options anywhere, exit codes, one sentence per error, what a bare install says."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata

import pytest

from popclient import cli
from tests.support.shell import POPMQ, Shell, installed

# Runs the command line where the server's packages cannot be imported.
BARE = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
from popclient.cli import main
sys.exit(main({words}))
"""
EXTRAS = {"sqlalchemy", "alembic", "pydantic", "pydantic_settings", "structlog", "grpc_health", "grpc_reflection"}


@pytest.fixture
def nobody_there() -> Iterator[str]:
    """An address where nothing listens, kept from others while the test runs."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


def bare(*words: str, blocked: set[str] = EXTRAS) -> subprocess.CompletedProcess[str]:
    program = BARE.format(blocked=blocked, words=list(words))
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)


def test_the_installed_command(shell: Shell) -> None:
    shell.ok("topic", "create", "flights")
    by_option = installed("topic", "list", "--json", "--endpoint", shell.endpoint)
    assert (by_option.status, [each["name"] for each in by_option.document]) == (0, ["flights"])
    by_environment = installed("status", "--json", POPMQ_ENDPOINT=shell.endpoint)
    assert (by_environment.status, by_environment.document["topics"]) == (0, 1)
    assert installed("topic", "show", "nowhere", POPMQ_ENDPOINT=shell.endpoint).status == 4
    assert installed("--version").out == f"popmq {metadata.version('popmq')}\n"


def test_global_options_stand_anywhere(shell: Shell) -> None:
    first = shell("--json", "--namespace", "n", "topic", "create", "a")
    last = shell("topic", "create", "b", "--namespace", "n", "--json")
    between = shell("topic", "--json", "create", "--namespace=n", "c")
    assert [said.document["namespace"] for said in (first, last, between)] == ["n", "n", "n"]


@pytest.mark.parametrize(
    "words",
    [
        ["status"],
        ["topic", "list"],
        ["topic", "delete", "t", "--yes"],
        ["message", "send", "t", "x"],
        ["message", "receive", "t", "--group", "g", "--wait", "0s"],
    ],
    ids=" ".join,
)
def test_nothing_listens(nobody_there: str, words: list[str]) -> None:
    said = installed(*words, POPMQ_ENDPOINT=nobody_there)
    assert (said.status, said.out) == (3, "")
    assert said.err.startswith("popmq: ")
    assert said.err.count("\n") == 1
    assert nobody_there in said.err
    assert "popmq serve" in said.err
    assert "--endpoint" in said.err


@pytest.mark.parametrize(
    ("words", "word"),
    [
        ([], "COMMAND"),
        (["frobnicate"], "frobnicate"),
        (["topic"], "ACTION"),
        (["topic", "create"], "NAME"),
        (["topic", "create", "t", "--queues", "many"], "'many' is no whole number"),
        (["topic", "create", "t", "--queues", "0"], "--queues: 0 is not between 1 and 1,024 ("),
        (["topic", "create", "t", "--type", "odd"], "'ODD'"),
        (["group", "create", "g", "--retry", "10"], "'10' is not a duration; write 500ms, 10s"),
        (["group", "create", "g", "--retry", "10s,,1m"], "'' is not a duration"),
        (["group", "create", "g", "--retry", "-5s"], "--retry"),
        (["group", "create", "g", "--history", "some"], "'some'"),
        (["group", "create", "g", "--max", "3"], "--max 3"),
        (["message", "send", "t", "x", "--property", "novalue"], "'novalue' is no property; write name=value"),
        (["message", "send", "t", "x", "--count", "0"], "0 is not between 1 and"),
        (["message", "receive", "t"], "--group"),
        (["message", "receive", "t", "--group", "g", "--max", "33"], "33 is not between 1 and 32"),
        (["message", "receive", "t", "--group", "g", "--invisible", "9999999999d"], "longer than ten years"),
        (["message", "peek", "t", "--max", "1001"], "1001 is not between 1 and 1,000"),
        (["status", "--endpoint", "nonsense:port"], "'nonsense:port'"),
    ],
    ids=str,
)
def test_usage_errors(shell: Shell, words: list[str], word: str) -> None:
    said = shell(*words)
    assert (said.status, said.out) == (2, "")
    assert said.err.startswith("popmq: ")
    assert said.err.count("\n") == 1
    assert word in said.err


@pytest.mark.parametrize(
    ("words", "help_of"),
    [
        (["group", "update", "g", "--retries", "10s"], "popmq group update"),
        (["--json", "message", "peek", "t", "more", "--max", "3"], "popmq message peek"),
        (["acl", "policy", "list", "--all"], "popmq acl policy list"),
        (["serve", "--listen", "0.0.0.0:8081"], "popmq serve"),
        (["status", "now"], "popmq status"),
    ],
    ids=str,
)
def test_what_no_command_takes_leads_to_its_help(shell: Shell, words: list[str], help_of: str) -> None:
    said = shell(*words)
    assert (said.status, said.out) == (2, "")
    assert said.err.startswith("popmq: unrecognized arguments: ")
    assert said.err.endswith(f" (see {help_of} --help)\n")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["serve", "--database", "sqlite:///a.db"], "; did you mean --database-url? ("),
        (["serve", "--db=sqlite:///a.db"], "; did you mean --database-url? ("),
        (["backup", "copy.db", "--url", "sqlite:///a.db"], "; did you mean --database-url? ("),
        (["serve", "--hots", "0.0.0.0", "--prot", "1"], "; did you mean --host and --port? ("),
        (["topic", "create", "t", "--queue", "3"], "; did you mean --queues? ("),
        (["status", "--endpiont", "127.0.0.1:1"], "; did you mean --endpoint? ("),
        (["--endpont", "x", "status"], "unrecognized arguments: --endpont; did you mean --endpoint? (see popmq --help"),
        (["topic", "--nmespace", "x", "list"], "--nmespace; did you mean --namespace? (see popmq topic --help"),
        (["--json", "-q", "x", "status"], "unrecognized arguments: -q ("),
        (["--namespace", "n", "staus"], "invalid choice: 'staus'"),
        (["serve", "--verbose"], "--verbose ("),
        (["status", "now"], "now ("),
        (["topic", "lst"], "; did you mean list? ("),
        (["topics", "list"], "; did you mean topic? ("),
        (["acl", "policy", "ad"], "; did you mean add? ("),
        (["top", "--sort", "x"], "invalid choice: 'x'"),
        (["message", "find"], "name a key or a topic to search: --key KEY or --topic TOPIC"),
    ],
    ids=str,
)
def test_an_option_that_was_probably_meant_is_named(shell: Shell, words: list[str], hint: str) -> None:
    said = shell(*words)
    assert (said.status, said.out) == (2, "")
    assert hint in said.err


def test_a_malformed_environment_is_a_usage_error() -> None:
    said = installed("status", POPMQ_ENDPOINT="host:port:more stuff")
    assert (said.status, said.out) == (2, "")
    assert "host:port:more stuff" in said.err


def test_every_command_has_help(shell: Shell) -> None:
    codes = "0 ok, 1 refused, 2 usage, 3 unreachable, 4 not found, 130 interrupted by ctrl-c, 141 if the reader"
    assert f"exit codes: {codes} of the output has closed it." in " ".join(shell("--help").out.lower().split())
    for words in (["topic"], ["topic", "create"], ["group", "update"], ["message", "receive"], ["dlq"], ["status"]):
        said = shell(*words, "--help")
        assert said.status == 0
        assert said.out.startswith(f"usage: popmq {' '.join(words)}")


def test_a_reader_that_has_enough_gets_no_sentence(shell: Shell) -> None:
    for number in range(40):
        shell.ok("topic", "create", f"topic-{number}")
    listing = subprocess.Popen(
        [POPMQ, "topic", "list", "--endpoint", shell.endpoint],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert listing.stdout is not None
    assert listing.stderr is not None
    listing.stdout.close()
    with listing:
        assert listing.stderr.read() == ""
    assert listing.returncode == 141  # as by SIGPIPE: the output is not whole


def test_a_bare_install_has_a_working_command(shell: Shell) -> None:
    done = bare("status", "--json", "--endpoint", shell.endpoint)
    assert (done.returncode, done.stderr) == (0, "")
    assert bare("--help").returncode == 0


@pytest.mark.parametrize("blocked", [EXTRAS, {"popserver"}], ids=["packages missing", "server missing"])
@pytest.mark.parametrize("words", [["serve", "--port", "0"], ["db", "check"]], ids=" ".join)
def test_a_bare_install_says_what_the_server_needs(words: list[str], blocked: set[str]) -> None:
    done = bare(*words, blocked=blocked)
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        done.stderr == f"popmq: '{words[0]}' needs the extra server of PopMQ: pip install '.[server]' in a checkout\n"
    )


def test_a_bare_install_says_what_a_relay_needs() -> None:
    done = bare("relay", "--once", "--database-url", "sqlite:///shop.db")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "popmq: 'relay' needs the extra sql of PopMQ: pip install '.[sql]' in a checkout\n"


@pytest.mark.parametrize(
    ("url", "blocked", "status", "says"),
    [
        (
            "postgresql://host/shop",
            {"psycopg"},
            1,
            "'relay' needs the extra postgres of PopMQ: pip install '.[postgres]' in a checkout",
        ),
        ("mysql+pymysql://host/shop", set(), 2, "--database-url: 'mysql+pymysql' needs the module pymysql; install it"),
    ],
)
def test_a_relay_without_its_databases_driver(url: str, blocked: set[str], status: int, says: str) -> None:
    done = bare("relay", "--once", "--database-url", url, blocked=blocked)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", f"popmq: {says}\n")


@pytest.mark.parametrize(
    ("why", "advice"),
    [
        ("Deadline Exceeded", "; start a server with: popmq serve, or name another with --endpoint"),
        ("Connection refused; start a server with: popmq serve, or name another endpoint", " endpoint with --endpoint"),
        ("no gRPC; name the port of the server for clients (8081)", "; name the port of the server for clients (8081)"),
    ],
)
def test_a_server_that_is_not_reached_leads_to_one_advice(why: str, advice: str) -> None:
    """Also at the default port."""
    said = cli._unreachable(f"no answer from 127.0.0.1:8081: {why}")
    assert said.endswith(advice)
    assert said.count("popmq serve") <= 1
