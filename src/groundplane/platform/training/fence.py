"""Fencing: of all attempts that may still be alive, only the newest changes what outlives attempts.

Every attempt of a job carries a number that rises. The newest one writes its number into the job's folder
when it starts; every change of visible state (a checkpoint's rename, retention, the export) is made under the
folder's lock and only after the number was read again. An attempt that was thought dead and is not
can therefore write temporary files, which nobody reads, and nothing else.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from groundplane.platform.training.failures import TrainingFailure
from groundplane.platform.training.files import write_durable

LOCK_LIMIT_S: Final = 60.0
"""How long a change waits for another process inside the lock, which needs milliseconds."""
_POLL_S: Final = 0.01


class Fence:
    """The right of one attempt to change a job's folder. Used by rank 0 only.

    Args:
        job_dir: the job's folder.
        number: the attempt's fencing number, or None for "one more than the last one", for runs that no
            control plane numbers.
    """

    def __init__(self, job_dir: Path, number: int | None) -> None:
        self._file = job_dir / "fence"
        self._lock = job_dir / "fence.lock"
        with self._locked():
            last = self._recorded()
            self.number = last + 1 if number is None else number
            if self.number < last:
                raise self._superseded(last)
            write_durable(self._file, f"{self.number}\n".encode(), attempt=self.attempt)

    @property
    def attempt(self) -> str:
        """The attempt's mark in temporary names."""
        return f"f{self.number}"

    @contextmanager
    def held(self) -> Iterator[None]:
        """A short stretch in which this attempt, and no other, changes visible state.

        Raises:
            TrainingFailure: a newer attempt has begun, or the lock is stuck.
        """
        with self._locked():
            last = self._recorded()
            if last > self.number:
                raise self._superseded(last)
            yield

    def _superseded(self, last: int) -> TrainingFailure:
        return TrainingFailure(
            f"attempt with fence {self.number} is superseded by fence {last}; it changes nothing more"
        )

    def _recorded(self) -> int:
        try:
            return int(self._file.read_text())
        except FileNotFoundError:
            return 0

    @contextmanager
    def _locked(self) -> Iterator[None]:
        descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            deadline = time.monotonic() + LOCK_LIMIT_S
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise TrainingFailure(
                            f"{self._lock} is held by another process for {LOCK_LIMIT_S:g} s"
                        ) from None
                    time.sleep(_POLL_S)
            yield
        finally:
            os.close(descriptor)
