"""The documentation site names every page, class, command and column that there is."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys
import tomllib
from inspect import getdoc, getmembers, isclass
from pathlib import Path

import pytest
from sqlalchemy import inspect

import popclient
from popclient import PopError, Repeat, errors
from popclient._session.repeating import LOOPS
from popclient._session.statuses import ERROR_OF_GRPC, ERROR_OF_HTTP
from popproto.v2 import definition_pb2 as pb
from popserver import pytest_plugin
from popserver.config import Config
from popserver.database.views import VIEWS
from popserver.transport.status import CODES
from tests.support.open_store import OpenStore

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
# A row of a table, by its first two cells.
ROWS = re.compile(r"^\| ([^|]+?) \| ([^|]+?) \|", re.MULTILINE)
MODULES = (
    "popclient", "popclient.aio", "popclient.admin", "popclient.sql", "popclient.spark", "popclient.frameworks.taskiq",
    "popserver",
)  # fmt: skip


def test_each_page_is_in_the_contents() -> None:
    contents = (DOCS / "_toc.yml").read_text()
    named = set(re.findall(r"(?:root|file): (\S+)", contents))
    for pattern in re.findall(r"glob: (\S+)", contents):
        named |= {str(path.relative_to(ROOT).with_suffix("")) for path in ROOT.glob(f"{pattern}.md")}
    there = {str(path.relative_to(ROOT).with_suffix("")) for path in [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]}
    assert named == there, "name each page in docs/_toc.yml, at the place where a reader looks for it"


def test_each_public_name_is_in_the_reference() -> None:
    pages = "".join(page.read_text() for page in (DOCS / "api").glob("*.md"))
    told = set(re.findall(r"^\.\. auto(?:class|exception|function):: ([\w.]+)$", pages, re.MULTILINE))
    whole = set(re.findall(r"^\.\. automodule:: ([\w.]+)$", pages, re.MULTILINE))
    found = {
        f"{module}.{name}"
        for module in MODULES
        if module not in whole
        for name in importlib.import_module(module).__all__
    }
    # What popclient.aio and popclient.sql share with popclient is described there.
    alike = {name for name in found if f"popclient.{name.rpartition('.')[2]}" in told}
    assert found - told - alike == {
        "popclient.sql.metadata", "popclient.sql.outbox", "popclient.sql.processed", "popserver.__version__",
    }  # fmt: skip


def test_each_public_attribute_has_a_docstring() -> None:
    """One without is not in the reference. What classes have from other packages is not ours."""
    classes = {
        getattr(importlib.import_module(module), name)
        for module in MODULES
        for name in importlib.import_module(module).__all__
    }
    silent = [
        f"{base.__module__}.{base.__qualname__}.{name}"
        for each in classes
        if isinstance(each, type)
        for base in each.__mro__
        if base.__module__.partition(".")[0] in {"popclient", "popserver"}
        for name, value in vars(base).items()
        if not name.startswith("_")
        and (callable(value) or isinstance(value, property))
        and not getdoc(getattr(each, name))
    ]
    assert silent == []


@pytest.mark.parametrize("page", ["commands", "lifecycle", "architecture", "metrics", "api/names"])
def test_generated_pages_are_fresh(page: str) -> None:
    """As `make fresh` checks it, so that it is seen before a push."""
    done = subprocess.run([sys.executable, DOCS / f"{page}.py", "--check"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "page",
    [
        '<script type="module" src="https://cdn.example/a.js"></script>',
        '<script type="module">import a from "https://cdn.example/a.js";</script>',
        '<link rel="stylesheet" href="//cdn.example/a.js">',
        "<style>@font-face { src: url(https://cdn.example/a.js) }</style>",
        '<img alt="" src="http://cdn.example/a.js">',
    ],
)
def test_a_page_that_needs_another_site_is_named(page: str, tmp_path: Path) -> None:
    """`make docs` fails then."""
    links = '<a href="https://example.org/">a link</a><script src="_static/a.js"></script><link href="a.css">'
    (tmp_path / "good.html").write_text(links)
    check = [sys.executable, str(DOCS / "offline.py"), str(tmp_path)]
    assert subprocess.run(check, check=False).returncode == 0
    (tmp_path / "bad.html").write_text(links + page)
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert re.fullmatch(r"bad\.html fetches (https?:)?//cdn\.example/a\.js\n", done.stderr)


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no Chromium is installed")
def test_a_table_that_scrolls_is_named(tmp_path: Path) -> None:
    """`make docs` fails then."""
    box = (
        '<div style="overflow: auto"><table class="docutils"><tr><th>Head<td style="min-width: {}px">cell</table></div>'
    )
    check = [sys.executable, str(DOCS / "tables.py"), str(tmp_path)]
    (tmp_path / "good.html").write_text(box.format(100))
    assert subprocess.run(check, check=False).returncode == 0
    (tmp_path / "bad.html").write_text(box.format(1_300))
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert re.fullmatch(r"bad\.html: 13\d\d px in 12\d\d: Head cell\n", done.stderr)


def test_each_column_of_a_view_is_described(store: OpenStore) -> None:
    sections = (DOCS / "views.md").read_text().split("\n## ")
    for view in VIEWS:
        [section] = [each for each in sections if each.startswith(f"{view}\n")]
        told = [
            name for row in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)
        ]
        assert sorted(told) == sorted(column["name"] for column in inspect(store.conn).get_columns(view))


def test_each_status_code_is_described() -> None:
    section = (DOCS / "errors.md").read_text().partition("## On the wire")[2].partition("\n## ")[0]
    told = {name: int(number) for number, name in ROWS.findall(section) if number.isdigit()}
    assert told == {pb.Code.Name(code): code for code in CODES.values()}


def test_each_error_of_the_client_is_described() -> None:
    section = (DOCS / "errors.md").read_text().partition("## In popclient")[2].partition("\n## ")[0]
    told = {name for first, _ in ROWS.findall(section) for name in re.findall(r"`(\w+)`", first)}
    public = {name: getattr(popclient, name) for name in popclient.__all__}
    errors = {name for name, it in public.items() if isinstance(it, type) and issubclass(it, PopError)}
    assert errors - told == set()


def test_figures_that_a_run_writes_are_repeated_nowhere() -> None:
    """A page that repeats one by hand is wrong after the next run. Let it link to the table of the README."""
    written = re.compile(r"<!-- Figures of .*?<!-- End of the figures. -->", re.DOTALL)
    [table] = written.findall((ROOT / "README.md").read_text())
    rows = re.findall(r"^\| PopMQ on \w+ \| (.+) \|$", table, re.MULTILINE)
    cells = [cell for row in rows for cell in row.split(" | ")]
    rates, others = ([cell for cell in cells if (" " in cell) is has_unit] for has_unit in (False, True))
    assert len(rates) == 8
    rounded = [f"{float(cell.split()[0]):.1f} ms" for cell in others if cell.endswith(" ms")]
    figures = "|".join([rf"(?:{'|'.join(rates)})(?:/s| a second| messages)", *map(re.escape, others + rounded)])
    for page in [ROOT / "README.md", *DOCS.glob("*.md"), *DOCS.glob("migrating/*.md")]:
        repeated = re.findall(rf"(?<![\d.,])(?:{figures})\b", written.sub("", page.read_text()))
        assert repeated == [], f"{page.name}: link to README.md#how-fast instead"


def test_the_picture_of_the_whole_is_the_same_on_both_first_pages() -> None:
    [[readme], [start]] = (
        re.findall(r"```mermaid\n.*?```", (folder / "README.md").read_text(), re.DOTALL) for folder in (ROOT, DOCS)
    )
    assert readme == start


def test_each_fixture_for_pytest_is_described() -> None:
    told = {first.strip("`") for first, _ in ROWS.findall((DOCS / "api" / "popserver.md").read_text())}
    fixtures = {name for name, it in vars(pytest_plugin).items() if name.startswith("pop_") and callable(it)}
    assert fixtures >= {"pop_server", "pop_clock"}
    assert fixtures - told == set()


def test_each_extra_is_named() -> None:
    """Apart from those of developers' tools, which `make` installs."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    told = (DOCS / "tour.md").read_text().partition("The extras are ")[2].partition(".")[0]
    assert set(re.findall(r"`(\w+)`", told)) == set(extras) - {"docs", "fuzz", "peers", "generate", "release"}


def test_each_test_that_a_promise_names_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", (DOCS / "promises.md").read_text())
    assert len(named) > 20
    for path, function in named:
        assert f"def {function}" in (ROOT / path).read_text(), f"{path} has no {function}"


def test_deploying_names_settings_that_there_are() -> None:
    page = (DOCS / "deploying.md").read_text()
    settings = {name.lower() for name in re.findall(r"POPMQ_([A-Z_]+)", page)}
    assert len(settings) >= 5
    assert settings - set(Config.model_fields) == set()
    serve = [line for line in page.splitlines() if "serve, --" in line or "popmq serve --" in line]
    options = {name[2:].replace("-", "_") for line in serve for name in re.findall(r"--[a-z-]+", line)}
    assert options - set(Config.model_fields) == set()


def test_what_is_repeated_is_told_as_it_is() -> None:
    page = (DOCS / "repeating.md").read_text()
    rows = {tuple(row.strip("| ").split(" | ")) for row in page.splitlines() if row.startswith("| ")}
    kinds = [kind for _, kind in getmembers(errors, isclass) if issubclass(kind, PopError)]
    for repeat in (Repeat.SOON, Repeat.LATER, Repeat.WHEN_REACHED):
        named = ", ".join(f"`{kind.__name__}`" for kind in kinds if kind.repeat is repeat)
        assert any(row[:2] == (repeat, named) for row in rows), f"{repeat}: {named}"
    for loop in LOOPS:
        pause = f"{loop.first:g}" if loop.first == loop.longest else f"{loop.first:g} to {loop.longest:g}"
        assert (loop.name, loop.refused, f"{loop.soon:g}", pause) in rows
    for code, kind in ERROR_OF_GRPC.items():
        assert (code.name, f"`{kind.__name__}`") in rows
    for status, answer in ERROR_OF_HTTP.items():
        assert (str(status), f"`{answer.kind.__name__}`", answer.meaning) in rows
