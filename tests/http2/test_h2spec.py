"""h2spec, the conformance tests of HTTP/2 and HPACK."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from popserver.front.source import Source
from tests.http2.doors import served
from tests.http2.programs import H2SPEC, program, run

SECTIONS = ("generic", "http2", "hpack")
# One case sends five headers of this length in one frame, which must be too large for a frame.
OPTIONS = ("-o", "10", "--max-header-length", "16000")
CASES = 145  # of h2spec 2.2.1; it must not report less because it stopped


@pytest.mark.parametrize("transport", ["plaintext", "tls"])
async def test_no_case_fails(source: Source, tmp_path: Path, transport: str) -> None:
    h2spec, report = program(H2SPEC), tmp_path / "report.xml"
    async with served(source) as wire_server:
        where = ["-p", str(wire_server.tls_port), "-t", "-k"] if transport == "tls" else ["-p", str(wire_server.port)]
        ended = await run(h2spec, "-h", "127.0.0.1", *where, *OPTIONS, "-j", str(report), *SECTIONS)
    assert report.exists(), ended.said[-2_000:]
    passed, failed = _judged(report)
    assert not failed, "\n\n".join(failed)
    assert passed == CASES


def _judged(report: Path) -> tuple[int, list[str]]:
    """How many cases passed, and the others: their section, title and what h2spec says about them."""
    passed, failed = 0, []
    for case in ET.parse(report).iter("testcase"):
        bad = [part for part in case if part.tag in ("failure", "error", "skipped")]
        if bad:
            said = "\n".join("".join(part.itertext()).strip() or part.tag for part in bad)
            failed.append(f"{case.get('package')}: {case.get('classname')}\n{said}")
        else:
            passed += 1
    return passed, failed
