"""The GPU test suite in one command, from an installed wheel, with a table and JSON.

    python tests/gpu/run.py [--json FILE] [--allow-missing] [pytest arguments…]

Exit status: 0 everything ran and passed; 1 something failed or crashed; 2 there is no installed
wheel to test; 3 nothing failed, but not everything ran (0 with --allow-missing).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
EXIT_NO_WHEEL = 2


def main(arguments: list[str]) -> int:
    """Run the suite and report."""
    parser = argparse.ArgumentParser(
        description="Test the installed fp4aot on this machine's GPUs.",
        epilog="Other arguments go to pytest.",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report as JSON")
    parser.add_argument(
        "--allow-missing", action="store_true", help="exit with 0 although tests did not run"
    )
    options, others = parser.parse_known_args(arguments)
    from gpusuite import report

    problem, environ = installed_wheel(os.environ)
    if problem:
        print(problem, file=sys.stderr)
        return EXIT_NO_WHEEL
    with tempfile.TemporaryDirectory() as folder:
        records = Path(folder) / "records.jsonl"
        with subprocess.Popen(command(others, records), env=environ) as tests:
            # An interruption ends the tests; what they did until then is reported all the same.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            status = tests.wait()
        lines = records.read_text(encoding="utf-8").splitlines() if records.is_file() else []
    result = report.read(lines)
    if result.crashed:
        print(f"the test process ended with status {status}", file=sys.stderr)
    print("\n" + report.render(result))
    if options.json:
        data = report.to_json(result, options.allow_missing)
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return result.exit_status(options.allow_missing)


def command(others: list[str], records: Path) -> list[str]:
    """Return the command that runs the tests; a path among the arguments selects some of them."""
    selected = any(
        not other.startswith("-") and Path(other.split("::")[0]).exists() for other in others
    )
    return [
        *(sys.executable, "-m", "pytest", f"--rootdir={ROOT}", f"--records={records}"),
        *("-p", "no:cacheprovider", *others, *([] if selected else [str(HERE)])),
    ]


def installed_wheel(environ: dict[str, str] | os._Environ[str]) -> tuple[str, dict[str, str]]:
    """Find the wheel that is tested.

    Returns
    -------
    problem : str
        Why there is none, or nothing.
    environ : dict
        The environment for the test process, in which this package's source is out of reach.
    """
    spec = find_spec("fp4aot")
    if spec is None or spec.origin is None:
        return "fp4aot is not installed; build a wheel and install it with pip", {}
    if ROOT / "wheels" in Path(spec.origin).resolve().parents:
        return f"{spec.origin} is the source tree; install a wheel and take it off PYTHONPATH", {}
    print(f"testing {spec.origin}", flush=True)
    # The folder from which this is started must not decide what is imported.
    return "", {**environ, "PYTHONSAFEPATH": "1"}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
