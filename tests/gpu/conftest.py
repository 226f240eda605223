"""Tests on a real GPU, from an installed wheel: ``python tests/gpu/run.py``, or plain pytest.

What this machine cannot run is skipped as DID NOT RUN and makes the exit status non-zero unless
``--allow-missing`` says that this is all right: a run that tested nothing must not look like a run
that passed. What makes no sense for this wheel on this device is skipped as not applicable.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import fp4aot

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "tests")]

from gpusuite import records, report, wheel  # noqa: E402 (found through the line above)

DETAILS = pytest.StashKey[records.Details]()
WRITER = pytest.StashKey[records.Writer]()
MISSING = pytest.StashKey[list]()
OUTCOME = pytest.StashKey[tuple]()
SECONDS = pytest.StashKey[float]()

MARKERS = (
    "subject(name): the row of the table that a test belongs to; by default its parameter "
    "'operator', else its file",
    "needs(*operators): runs only where the wheel holds images of these operators for the device; "
    "without arguments, of the test's parameter 'operator'",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("fp4aot on a GPU")
    group.addoption("--records", metavar="FILE", help="append what happens to this file (JSON)")
    group.addoption(
        "--allow-missing", action="store_true", help="exit with 0 although tests did not run"
    )


def pytest_configure(config: pytest.Config) -> None:
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    config.stash[MISSING] = []
    path = config.getoption("--records")
    if path:
        config.stash[WRITER] = records.Writer(Path(path))


def pytest_report_header() -> list[str]:
    """Say what is tested, on what."""
    manifest = fp4aot._MANIFEST
    lines = [
        f"fp4aot {fp4aot.__version__}, preset {manifest.preset}, plan {manifest.plan_hash[:12]}, "
        f"library {manifest.library_sha256[:12]}, from {Path(fp4aot.__file__).parent}",
        f"torch {torch.__version__}",
    ]
    if manifest.is_lowered:
        lines.insert(0, report.LOWERED)
    for index in range(torch.cuda.device_count()):
        major, minor = torch.cuda.get_device_capability(index)
        lines.append(f"cuda:{index} {torch.cuda.get_device_name(index)} ({major}.{minor})")
    return lines


def pytest_sessionstart(session: pytest.Session) -> None:
    if ROOT / "wheels" in Path(fp4aot.__file__).resolve().parents:
        pytest.exit("fp4aot was imported from the source tree: install a wheel", returncode=1)
    if writer := session.config.stash.get(WRITER, None):
        writer.write("environment", **wheel.describe())


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    config = session.config
    missing = config.stash[MISSING] and not config.getoption("--allow-missing")
    if missing and exitstatus == 0:
        session.exitstatus = report.EXIT_MISSING
    if writer := config.stash.get(WRITER, None):
        writer.write("finish", status=int(exitstatus))
        writer.close()


def pytest_terminal_summary(terminalreporter, config: pytest.Config) -> None:
    missing = config.stash[MISSING]
    if missing:
        terminalreporter.section("DID NOT RUN")
        for line in dict.fromkeys(missing):
            terminalreporter.line(line)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Bring another package's code into the process only when this one's tests are done."""
    last = ("test_aotinductor", "test_sanitizer", "test_against_flashinfer")
    items.sort(key=lambda item: last.index(item.path.stem) if item.path.stem in last else -1)


def subject_of(item: pytest.Item) -> str:
    if marker := item.get_closest_marker("subject"):
        return str(marker.args[0])
    operator = getattr(item, "callspec", None) and item.callspec.params.get("operator")
    return operator if isinstance(operator, str) else item.path.stem.removeprefix("test_")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if writer := item.config.stash.get(WRITER, None):
        writer.write("start", name=item.nodeid, subject=subject_of(item))
    if torch.cuda.device_count() == 0:
        wheel.did_not_run("no GPU, or a torch without CUDA")
    for marker in item.iter_markers("needs"):
        wheel.require(*(marker.args or (item.callspec.params["operator"],)))


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function):
    """Fail a test whose cases failed."""
    result = yield
    if details := pyfuncitem.stash.get(DETAILS, None):
        details.raise_failures()
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    result = yield
    if call.when == "setup":
        item.stash[OUTCOME] = None
    seen = _outcome(result)
    before = item.stash.get(OUTCOME, None)
    # The call's outcome counts, unless setting up or tearing down went wrong.
    if seen is not None and (before is None or seen[0] == records.FAILED):
        item.stash[OUTCOME] = seen
    item.stash[SECONDS] = item.stash.get(SECONDS, 0.0) + call.duration
    if call.when == "teardown":
        _record(item)
    return result


def _outcome(result: pytest.TestReport) -> tuple[str, str] | None:
    if result.failed:
        return records.FAILED, result.longreprtext[-4000:]
    if result.skipped:
        reason = result.longrepr[2] if isinstance(result.longrepr, tuple) else str(result.longrepr)
        return records.outcome_of_skip(reason.removeprefix("Skipped: "))
    return (records.PASSED, "") if result.when == "call" else None


def _record(item: pytest.Item) -> None:
    outcome, reason = item.stash[OUTCOME] or (records.FAILED, "it has no outcome")
    if outcome == records.DID_NOT_RUN:
        item.config.stash[MISSING].append(f"{subject_of(item)}: {reason}")
    details = item.stash.get(DETAILS, None)
    if writer := item.config.stash.get(WRITER, None):
        writer.write(
            "test",
            name=item.nodeid,
            subject=subject_of(item),
            outcome=outcome,
            seconds=round(item.stash[SECONDS], 3),
            reason=reason,
            details=details.to_json() if details else {},
        )


@pytest.fixture
def details(request: pytest.FixtureRequest) -> records.Details:
    """Take counts and errors for the report; `details.case` goes on after a failure."""
    request.node.stash[DETAILS] = records.Details()
    return request.node.stash[DETAILS]


@pytest.fixture
def capability() -> tuple[int, int]:
    """Compute capability of cuda:0."""
    return torch.cuda.get_device_capability(0)


@pytest.fixture(autouse=True)
def _fresh_compiler_and_no_late_errors():
    """Start each test without compiled code; end it by waiting for what it launched."""
    torch._dynamo.reset()
    yield
    torch.cuda.synchronize()
    # What lies cached is poisoned again and again.
    torch.cuda.empty_cache()
