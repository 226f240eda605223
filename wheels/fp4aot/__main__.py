"""``python -m fp4aot``: ``doctor``, ``selftest``, ``tune`` and ``tactics``."""

from __future__ import annotations

import argparse
import json
import sys


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit status: 0 when all is well."""
    from fp4aot._tactics.command_line import add_tactics  # noqa: PLC0415 (for the commands alone)

    parser = argparse.ArgumentParser(prog="python -m fp4aot", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    doctor = commands.add_parser("doctor", help="what this wheel holds and whether it fits")
    doctor.add_argument(
        "--verify",
        action="store_true",
        help="instead: compare the installed files with the wheel's RECORD and manifest",
    )
    selftest = commands.add_parser("selftest", help="run every operator against the reference")
    selftest.add_argument(
        "--weights",
        help="also quantize a real model: a .safetensors file, or an installed package with one",
    )
    for command in (doctor, selftest):
        command.add_argument("--json", action="store_true", help="print JSON")
    add_tactics(commands)
    options = parser.parse_args(arguments)
    if options.command in ("tune", "tactics"):
        return _tactics(options)
    if options.command == "doctor" and options.verify:
        return _verify(as_json=options.json)
    if options.command == "doctor":
        return _doctor(as_json=options.json)
    return _selftest(options.weights, as_json=options.json)


def _doctor(*, as_json: bool) -> int:
    from fp4aot import _doctor as doctor  # noqa: PLC0415 (a failed import is this command's answer)

    report = doctor.examine()
    print(json.dumps(report.to_json(), indent=2) if as_json else doctor.render(report))
    return 0 if report.ok else 1


def _verify(*, as_json: bool) -> int:
    from fp4aot import _verify as verify  # noqa: PLC0415

    return verify.print_report(as_json=as_json)


def _selftest(weights: str | None, *, as_json: bool) -> int:
    from fp4aot import _selftest as selftest  # noqa: PLC0415

    report = selftest.run(weights)
    print(json.dumps(report.to_json(), indent=2) if as_json else selftest.render(report))
    return 0 if report.ok else 1


def _tactics(options: argparse.Namespace) -> int:
    from fp4aot.tactics import TacticsError  # noqa: PLC0415

    try:
        return int(options.run(options))
    except TacticsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
