"""One corpus and one finished run that several tests look at."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from training_runs import tiny_spec, write_corpus

from groundplane.platform.training import launch


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("text") / "corpus")


@pytest.fixture(scope="session")
def undisturbed(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job's folder after two ranks under DDP have trained it to the end; `work` is its only attempt."""
    job_dir = tmp_path_factory.mktemp("undisturbed") / "job"
    launch.write_spec(job_dir, tiny_spec(corpus))
    assert launch.run_local(job_dir, job_dir / "work", 2) == [0, 0], (
        job_dir / "work" / "rank-0.log"
    ).read_text()
    return job_dir


@pytest.fixture(scope="module")
def alone() -> Iterator[object]:
    """A gang of one rank inside the test's own process."""
    from groundplane.platform.training import parallel

    ranks = parallel.open_ranks(0, 1)
    yield ranks
    parallel.close_ranks()
