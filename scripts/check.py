"""Everything that must hold before a change lands: what `make test` and CI run.

Style, floors, types, then the whole test suite against the built wheel (never against `src`). Says at the
end what was skipped and why; with GROUNDPLANE_NO_SKIPS=1, as in CI, a skip is a failure.
Needs no root and no network.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WHEEL_SITE = ROOT / "build" / "wheel-site"
BIN = Path(sys.executable).parent


def main() -> int:
    os.chdir(ROOT)
    begun = time.monotonic()
    steps: list[tuple[str, list[str]]] = [
        ("style", [str(BIN / "ruff"), "check", "--quiet", "."]),
        ("format", [str(BIN / "ruff"), "format", "--check", "--quiet", "."]),
        ("floors", [str(BIN / "lint-imports"), "--no-logo"]),
        ("types", [str(BIN / "mypy")]),
    ]
    for name, command in steps:
        if run(name, command) != 0:
            return 1
    if build_wheel() != 0:
        return 1
    code = run_tests(sys.argv[1:])
    print(
        f"== {'all of it passed' if code == 0 else 'FAILED'} after {time.monotonic() - begun:.0f} s",
        flush=True,
    )
    return code


def run(name: str, command: list[str], env: dict[str, str] | None = None) -> int:
    begun = time.monotonic()
    print(f"== {name}", flush=True)
    done = subprocess.run(command, env=env, check=False)
    print(
        f"== {name}: {'ok' if done.returncode == 0 else f'FAILED ({done.returncode})'}, "
        f"{time.monotonic() - begun:.0f} s",
        flush=True,
    )
    return done.returncode


def build_wheel() -> int:
    """Builds the wheel and lays it out in a folder of its own, which the tests then import from."""
    shutil.rmtree(ROOT / "build", ignore_errors=True)
    wheels = ROOT / "build" / "wheels"
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(wheels), "."]
    if run("wheel", command) != 0:
        return 1
    (wheel,) = wheels.glob("*.whl")
    return run(
        "wheel layout",
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
            *("--no-deps", "--no-index", "--no-compile", "--target", str(WHEEL_SITE), str(wheel)),
        ],
    )


def run_tests(arguments: list[str]) -> int:
    """First the pure tests on all cores, then those that start real processes, one after the other."""
    env = os.environ | {"PYTHONPATH": str(WHEEL_SITE), "GROUNDPLANE_WHEEL_SITE": str(WHEEL_SITE)}
    pytest = [sys.executable, "-m", "pytest", *arguments]
    for leftover in ROOT.glob(".coverage*"):
        leftover.unlink()
    coverage = ["--cov=groundplane", "--cov-branch", "--cov-report="]
    code = run("tests: pure", [*pytest, "-q", "-n", "auto", "-m", "not real", *coverage], env)
    if code == 0:
        code = run("tests: real parts", [*pytest, "-q", "-m", "real", "--cov-append", *coverage], env)
    if code == 0:
        code = run("coverage", [str(BIN / "coverage"), "report", "--skip-covered", "--fail-under=70"])
    return code


if __name__ == "__main__":
    sys.exit(main())
