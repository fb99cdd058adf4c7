"""Every document, section and requirement that a file of this repository cites exists."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
KINDS = {".py", ".md", ".proto", ".sql", ".toml", ".txt", ".java", ".go", ".rs", ".js"}
FOLDERS = ("benchmarks", "docs", "examples", "migrations", "popclient", "popserver", "proof", "proto", "tests")
MADE_ELSEWHERE = {"node_modules", "target", "__pycache__", "v1", "v2"}  # the latter two: proto/popproto

ROW = r"[A-OU]\d{1,2}"
AND = r"(?:,\s+|\s+and\s+|\s+to\s+|–)"
REQUIREMENTS = re.compile(rf"\b[Rr]equirements?\s+({ROW}(?:{AND}{ROW})*)")
COMPLAINTS = re.compile(rf"\b[Cc]omplaints?\s+({ROW}(?:{AND}{ROW})*)")
SECTION = r"\d+(?:\.\d+)?"
PROTOCOL = re.compile(rf"\b[Pp]rotocol\s+({SECTION}(?:{AND}{SECTION})*)\b(?!\s*[%\w])")
DESIGN = re.compile(r"\bdocs/design/(\d+)")
PAGE = re.compile(r"(?<![\w/.:-])((?:[\w.-]+/)*[\w.-]+\.md)(?!\w)(?:#([\w-]+))?")
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)")
CODE_BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
# Forms that named documents outside of this repository.
UNKNOWN = re.compile(r"\b(?:[Cc]ontract \d|[Mm]ission rows? [A-O]\d|[Dd]esign \d|rows? [A-O]\d{1,2}\b)")


def sources() -> list[Path]:
    found = [path for path in ROOT.iterdir() if path.suffix in KINDS]
    for folder in FOLDERS:
        found += [path for path in (ROOT / folder).rglob("*") if path.suffix in KINDS]
    return sorted(path for path in found if not MADE_ELSEWHERE & set(path.relative_to(ROOT).parts))


def text_of(path: Path) -> str:
    """The file with each comment that goes on in the next line as one line."""
    return re.sub(r"\n[ \t]*#[ \t]+", " ", path.read_text())


@cache
def anchors(page: Path) -> set[str]:
    """The names by which a page's headings and marked places can be linked, as GitHub makes them."""
    text = CODE_BLOCK.sub("", page.read_text())
    slugs: Counter[str] = Counter()
    named = set(re.findall(r'<a id="([\w-]+)">', text))
    for heading in re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", shown.strip().lower()).replace(" ", "-")
        named.add(f"{slug}-{slugs[slug]}" if slugs[slug] else slug)
        slugs[slug] += 1
    return named


@cache
def rows() -> set[str]:
    return {row.upper() for row in re.findall(r'<a id="([a-o]\d+|u\d+)">', (DOCS / "requirements.md").read_text())}


@cache
def sections() -> set[str]:
    text = "".join((DOCS / page).read_text() for page in ("protocol.md", "protocol-messages.md"))
    return set(re.findall(rf"^##+ ({SECTION})\.? ", text, flags=re.MULTILINE))


def cited(pattern: re.Pattern[str], one: str, text: str) -> Iterator[str]:
    for found in pattern.finditer(text):
        yield from re.findall(one, found[1])


def unresolved(text: str) -> list[str]:
    """What the text cites and nobody can look up."""
    missing = [f"requirement {row}" for row in cited(REQUIREMENTS, ROW, text) if row not in rows() or row[0] == "U"]
    missing += [f"complaint {row}" for row in cited(COMPLAINTS, ROW, text) if row not in rows() or row[0] != "U"]
    missing += [f"protocol {each}" for each in cited(PROTOCOL, SECTION, text) if each not in sections()]
    missing += [f"docs/design/{each}" for each in DESIGN.findall(text) if not list(DOCS.glob(f"design/{each}-*.md"))]
    missing += [name for name, anchor in PAGE.findall(text) if not is_there(name, anchor)]
    return missing + UNKNOWN.findall(text)


def is_there(name: str, anchor: str) -> bool:
    """A page, as code names it: from the root of the repository, or by its name alone."""
    page = next(
        (
            folder / name
            for folder in (ROOT, DOCS, DOCS / "design", DOCS / "api", DOCS / "frameworks", DOCS / "migrating")
            if (folder / name).exists()
        ),
        None,
    )
    return page is not None and (not anchor or anchor in anchors(page))


def broken_links(page: Path) -> list[str]:
    found = []
    for name, anchor in LINK.findall(CODE_BLOCK.sub("", page.read_text())):
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            found.append(f"{name}#{anchor}")
    return found


def test_what_is_cited_exists() -> None:
    this = Path(__file__)
    found = {str(path.relative_to(ROOT)): unresolved(text_of(path)) for path in sources() if path != this}
    assert {path: missing for path, missing in found.items() if missing} == {}


def test_links_between_pages_lead_somewhere() -> None:
    pages = [path for path in sources() if path.suffix == ".md"]
    found = {str(page.relative_to(ROOT)): broken_links(page) for page in pages}
    assert {page: broken for page, broken in found.items() if broken} == {}


def test_links_to_other_sites_are_addresses() -> None:
    """Nobody is asked whether they answer: tests need no network."""
    for page in (path for path in sources() if path.suffix == ".md"):
        for link in re.findall(r"\]\((\w+:[^)]*)\)", CODE_BLOCK.sub("", page.read_text())):
            parts = urlsplit(link)
            assert parts.scheme == "https" and "." in parts.netloc and not re.search(r"\s", link), f"{page}: {link}"


def test_each_requirement_that_tests_show_is_described() -> None:
    shown = set((ROOT / "tests" / "rows.txt").read_text().split())
    for path in (each for each in sources() if each.is_relative_to(ROOT / "tests") and each.suffix == ".py"):
        for marks in re.findall(rf'mark\.(?:row|user)\(((?:"{ROW}"(?:,\s*)?)+)\)', path.read_text()):
            shown |= set(re.findall(ROW, marks))
    assert shown - rows() == set()


def test_requirements_are_described_once() -> None:
    described = re.findall(r'<a id="([\w-]+)">', (DOCS / "requirements.md").read_text())
    assert [each for each, count in Counter(described).items() if count > 1] == []
