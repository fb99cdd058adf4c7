"""The documentation site: `make docs` builds it with Sphinx from README.md, docs/ and the docstrings.

The source directory is the root of the repository, so links lead to the same files on a Git host and on the site.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))  # docstrings.py, diagrams.py

from diagrams import MERMAID  # noqa: E402

project = "PopMQ"
author = "the PopMQ authors"
copyright = "the PopMQ authors, Apache License 2.0"  # noqa: A001 - Sphinx reads this name

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_external_toc", "diagrams"]
external_toc_path = "docs/_toc.yml"
include_patterns = ["*.md", "docs/**"]
exclude_patterns = [".*", "**/node_modules", "**/target", "bench-out", "demo-out", "site-out", "dist"]

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
myst_fence_as_directive = ["mermaid"]
suppress_warnings = ["ref.python"]  # `Producer` is a class of popclient and of popclient.aio

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
# The types of arguments are read as they are written; only links between pages are required to lead somewhere.
nitpick_ignore_regex = [("py:.*", ".*")]

html_theme = "furo"
html_title = "PopMQ"
html_additional_pages = {"index": "start.html"}
templates_path = ["templates"]
html_static_path = ["static", str(MERMAID)]
html_copy_source = False
html_css_files = ["breaks.css"]

# Where a line may end within a name, so that tables with long names fit; `docs/tables.py` checks that they do.
BREAKS = re.compile(r"(?<=\w)(::|:/+|[-_/=])(?=\w)")


def _side_by_side(app: Sphinx, page: str, *_: object) -> None:
    if page.startswith("docs/migrating/"):
        app.add_css_file("pairs.css")  # in this event: for this page alone


def _with_breaks(_app: Sphinx, _page: str, _template: str, context: dict[str, Any], _doctree: object) -> None:
    names = re.compile(r'(?<=<span class="pre">)[^<]+')
    context["body"] = names.sub(lambda name: BREAKS.sub(r"\1<wbr>", name[0]), context.get("body", ""))


def setup(app: Sphinx) -> dict[str, Any]:
    from docstrings import as_restructured_text

    app.connect("autodoc-process-docstring", as_restructured_text)
    app.connect("html-page-context", _side_by_side)
    app.connect("html-page-context", _with_breaks)
    return {"parallel_read_safe": True}
