"""Diagrams of the site, which are written in Mermaid: the page has the text, and a script of the site draws it."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docutils import nodes
from docutils.parsers.rst import Directive

if TYPE_CHECKING:
    from sphinx.application import Sphinx

# `make docs` takes it from npm. A module would not work on pages that are opened from a disk; this is a plain script.
MERMAID = Path(__file__).parents[1] / ".venv" / "mermaid" / "package" / "dist" / "mermaid.min.js"
START = '<pre class="mermaid">'


class Mermaid(Directive):
    has_content = True

    def run(self) -> list[nodes.Node]:
        text = escape("\n".join(self.content))
        return [nodes.raw("", f"{START}{text}</pre>\n", format="html")]


def _with_script(app: Sphinx, _page: str, _template: str, _context: object, doctree: nodes.document | None) -> None:
    if doctree and any(node.astext().startswith(START) for node in doctree.findall(nodes.raw)):
        app.add_js_file(MERMAID.name)
        app.add_js_file("diagrams.js")


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("mermaid", Mermaid)
    app.connect("html-page-context", _with_script)
    return {"parallel_read_safe": True}
