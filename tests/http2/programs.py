"""Programs in Go that judge a door from outside: gRPC's own test client, h2spec and grpcurl."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import NamedTuple

from tests.support.built_programs import CannotBuild, built, do, do_without

SOURCES = Path(__file__).parent / "go"
INTEROP = "google.golang.org/grpc/interop/client"
H2SPEC = "github.com/summerwind/h2spec/cmd/h2spec"
GRPCURL = "github.com/fullstorydev/grpcurl/cmd/grpcurl"
PATIENCE_S = 120


class Ended(NamedTuple):
    code: int
    said: str  # stdout and stderr


def program(package: str) -> str:
    """The program of this package, built once; without Go the test is skipped, but not in CI."""
    try:
        (folder,) = built("http2-go", SOURCES, _build)
    except CannotBuild as missing:
        do_without(str(missing))
    return str(Path(folder) / package.rpartition("/")[2])


def _build(sources: Path, made: Path) -> list[str]:
    do(["go", "build", "-o", f"{made}/", INTEROP, H2SPEC, GRPCURL], sources)
    return [str(made)]


async def run(*command: str) -> Ended:
    """Run a program to its end, while the door serves in this process."""
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        async with asyncio.timeout(PATIENCE_S):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return Ended(process.returncode, output.decode(errors="replace"))
