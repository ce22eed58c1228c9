"""What all tests share: where the package comes from, the reference data, and no silent skips in CI."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import groundplane


def pytest_configure(config: pytest.Config) -> None:
    wheel_site = os.environ.get("GROUNDPLANE_WHEEL_SITE")
    found = Path(groundplane.__file__).resolve()
    if wheel_site and not found.is_relative_to(Path(wheel_site).resolve()):
        raise pytest.UsageError(f"the tests must import the built wheel in {wheel_site}, not {found}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """With GROUNDPLANE_NO_SKIPS=1 (CI, where every part is installed) a skipped test fails the run."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if (
        os.environ.get("GROUNDPLANE_NO_SKIPS") != "1"
        or reporter is None
        or hasattr(session.config, "workerinput")
    ):
        return
    skipped = reporter.stats.get("skipped", [])
    if skipped:
        reporter.write_line(f"{len(skipped)} skipped where nothing may be skipped", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of published measurements and traces, which users do not have."""
    beside = Path(__file__).resolve().parents[2] / "shared"
    folder = Path(os.environ.get("GROUNDPLANE_SHARED", beside))
    if not (folder / "measured").is_dir():
        pytest.skip("no reference data (GROUNDPLANE_SHARED)")
    return folder


@pytest.fixture
def eventually() -> Callable[..., None]:
    """`eventually(condition, deadline_s=10)`: waits for what other processes do, and fails with a reason."""

    def wait(condition: Callable[[], object], deadline_s: float = 10.0, what: str = "condition") -> None:
        end = time.monotonic() + deadline_s
        while not condition():
            if time.monotonic() > end:
                pytest.fail(f"{what} did not come true within {deadline_s} s")
            time.sleep(0.02)

    return wait
