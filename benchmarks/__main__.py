"""`python -m benchmarks [case …] [--quick] [--only noop,sqlite] [--json bench.json]`."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.abuse_cases import abuse_table
from benchmarks.admin_calls import admin_table
from benchmarks.bench import VARIANTS, Bench
from benchmarks.cases import APART, CASES, TOGETHER
from benchmarks.installed_cases import installed_table
from benchmarks.machine import Cores, environment
from benchmarks.mirror_cases import mirror_table
from benchmarks.peers.table import peers_table
from benchmarks.plan import FULL, QUICK, Plan
from benchmarks.report import summed_up, table, targets, targets_table

OUT = Path("bench-out")


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    plan = _plan(options)
    cores = Cores(pin=not options.no_pin)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    names = [each for name in options.case or CASES for each in TOGETHER.get(name, (name,))]
    result = run(names, plan, options.only, options.dir, cores, options.postgres_url, dict(options.popmq))
    options.json.write_text(json.dumps(result, indent=2) + "\n")
    usual = {name: case for name, case in result["cases"].items() if name in CASES}
    tables = [
        table(usual) if usual else "",
        admin_table(result["cases"]),
        abuse_table(result["cases"]),
        installed_table(result["cases"]),
        mirror_table(result["cases"]),
        peers_table(result["cases"]),
        targets_table(result["targets"]),
    ]
    print("\n\n".join([json.dumps(result["environment"]), *filter(None, tables)]))
    print(f"\n{result['took_s']:.0f} s; written to {options.json}")
    return 0


def run(
    names: Sequence[str],
    plan: Plan,
    variants: Sequence[str],
    folder: Path,
    cores: Cores,
    postgres_url: str | None = None,
    popmqs: Mapping[str, Path] | None = None,
) -> dict[str, Any]:
    """Run the cases. Returns the content of bench.json."""
    begun, results = time.monotonic(), dict[str, Any]()
    with Bench(plan, variants, folder.absolute() / f"work-{os.getpid()}", cores, postgres_url, popmqs) as bench:
        facts = environment(folder, cores)
        for name, case in (CASES | APART).items():
            if name in names:
                bench.enter(name)
                results[name] = summed_up(name, case.measure(bench))
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "took_s": round(time.monotonic() - begun, 1),
        "environment": facts,
        "plan": plan._asdict(),
        "cases": results,
        "targets": targets(results),
    }


def _plan(options: argparse.Namespace) -> Plan:
    plan = QUICK if options.quick else FULL
    given = {name: value for name in ("rounds", "seconds") if (value := getattr(options, name)) is not None}
    return plan._replace(**given)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__, epilog=_cases())
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "case",
        nargs="*",
        choices=[*CASES, *APART, *TOGETHER, []],
        metavar="case",
        help="cases to run (default: all above the line)",
    )
    parser.add_argument("--quick", action="store_true", help="a few minutes, one short round")
    parser.add_argument("--only", type=_variants, default=list(VARIANTS), help="variants, out of noop,sqlite,postgres")
    parser.add_argument("--rounds", type=int, help="rounds of each case")
    parser.add_argument("--seconds", type=float, help="duration of one measurement")
    parser.add_argument("--no-pin", action="store_true", help="leave processes to the system's scheduler")
    parser.add_argument("--postgres-url", help="a server where databases may be created (default: a new one)")
    parser.add_argument(
        "--popmq",
        action="append",
        default=[],
        type=_installation,
        metavar="NAME=PATH",
        help="an installation's popmq command, for the cases below the line; repeat the option for several",
    )
    parser.add_argument("--dir", type=Path, default=OUT, help="folder for the databases (default: bench-out)")
    parser.add_argument("--json", type=Path, default=OUT / "bench.json", help="file for the results")
    return parser


def _variants(written: str) -> list[str]:
    names = written.split(",")
    if unknown := set(names) - set(VARIANTS):
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: choose from {', '.join(VARIANTS)}")
    return names


def _installation(written: str) -> tuple[str, Path]:
    name, _, path = written.partition("=")
    if not Path(path).is_file():
        raise argparse.ArgumentTypeError(
            f"{written}: give a name and the path of a popmq command, as in old=/tmp/old/bin/popmq"
        )
    return name, Path(path).absolute()


def _cases() -> str:
    lines = [f"  {name:22} {case.title}" for name, case in CASES.items()]
    lines += ["  ----", *(f"  {name:22} all of {name}_..." for name in TOGETHER)]
    lines += [f"  {name:22} {case.title}" for name, case in APART.items()]
    return "\n".join(["cases:", *lines])


if __name__ == "__main__":
    sys.exit(main())
