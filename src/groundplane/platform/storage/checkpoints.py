"""Sharded checkpoints of any PyTorch state in a store: complete or invisible, written while training goes on.

    PREFIX/data/STEP-ATTEMPT/...      what PyTorch Distributed Checkpoint writes: each rank its part
    PREFIX/complete/STEP              the manifest, written last by the first rank: from here on it is there

Training waits only for the copy to host memory, into buffers that are kept from one save to the next. What is
read back is checked byte by byte by the store. A checkpoint can be loaded by another number of ranks or
another layout: that is Distributed Checkpoint's resharding. Every method is called by every rank, in step.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any, Final, cast

import msgspec
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemBase, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from groundplane.platform.storage.errors import Absent, Damaged, Pinned, StorageError
from groundplane.platform.storage.filesystem import StoreWriter
from groundplane.platform.storage.host_copy import HostCopy
from groundplane.platform.storage.manifest import PART_BYTES, check_name
from groundplane.platform.storage.store import Store
from groundplane.platform.storage.upkeep import Problem, verify
from groundplane.platform.training.checkpoint import refuse_other
from groundplane.spec.errors import GroundplaneError, InvariantError

_STEP_DIGITS: Final = 12


class Lineage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a checkpoint comes from.

    Attributes:
        code: revision of the code that trained it.
        data_position: samples of the run that were trained.
        parents: names of the checkpoints it goes on from.
    """

    code: str = ""
    data_position: int = 0
    parents: tuple[str, ...] = ()


class SavedCheckpoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a checkpoint's manifest says. `files` has the version of each file in the store, by its name."""

    step: int
    world_size: int
    attempt: str
    identity: dict[str, Any]
    lineage: Lineage
    files: dict[str, str]
    saved_ns: int


class StoreCheckpoints:
    """The checkpoints of one run.

    Args:
        store: where.
        prefix: of their names.
        attempt: mark of this attempt, so that two never write the same file.
        group: the gang's group for this alone (gloo), never used by training; None for a single process.
        keep: complete checkpoints that are kept; pinned ones are kept beyond that.
        identity: what a run must have in common with a checkpoint to go on from it.
        log: takes one line for people.
    """

    def __init__(
        self,
        store: Store,
        prefix: str,
        *,
        attempt: str,
        group: dist.ProcessGroup | None = None,
        keep: int = 3,
        identity: dict[str, Any] | None = None,
        log: Callable[[str], None] | None = None,
    ) -> None:
        self._store = store
        self._prefix = check_name(prefix)
        self._attempt = attempt
        self._group = group
        self._first = group is None or dist.get_rank(group) == 0
        self._world_size = 1 if group is None else dist.get_world_size(group)
        self._keep = keep
        self._identity = identity or {}
        self._log = log
        self._copy = HostCopy()
        self._running: threading.Thread | None = None
        self._failure: Exception | CheckpointException | None = None
        self._save_s = 0.0
        self._saved_step: int | None = None
        if group is None:
            # Distributed Checkpoint warns at each call of a single process; that is what is meant here.
            warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)

    def save(self, state: dict[str, Any], *, step: int, lineage: Lineage | None = None) -> float:
        """Begins a save; returns once the state is copied, with the seconds that training waited.

        A save that still runs is waited for first, and that counts too: buffers and disks are there once.

        Raises:
            StorageError: the save before this one failed.
        """
        begin_s = time.perf_counter()
        self.finish()
        staged = self._copy.take(state)
        manifest = SavedCheckpoint(
            step=step,
            world_size=self._world_size,
            attempt=self._attempt,
            identity=self._identity,
            lineage=lineage or Lineage(),
            files={},
            saved_ns=time.time_ns(),
        )

        def write() -> None:
            try:
                self._write(staged, manifest)
                self._saved_step = step
            except (CheckpointException, GroundplaneError, RuntimeError, OSError) as error:
                self._failure = error  # carried to the training thread
            self._save_s = time.perf_counter() - begin_s

        self._saved_step = None
        self._running = threading.Thread(target=write, name=f"checkpoint-{step}", daemon=True)
        self._running.start()
        return time.perf_counter() - begin_s

    def finish(self) -> float:
        """Waits until the save that runs, if any, is complete; returns the seconds that the last one took.

        Raises:
            StorageError: it failed, on whichever rank.
        """
        if self._running is None:
            return self._save_s
        self._running.join()
        self._running = None
        failure, self._failure = self._failure, None
        if failure is not None:
            raise StorageError(f"a checkpoint could not be written: {_told(failure)}") from failure
        if self._saved_step is None:
            raise InvariantError("a checkpoint's thread ended without a result")
        return self._save_s

    def steps(self) -> list[int]:
        """Steps of the complete checkpoints, newest first."""
        entries, _ = self._store.level(f"{self._prefix}/complete")
        found = [entry.name.rpartition("/")[2] for entry in entries]
        return sorted((int(name) for name in found if name.isdecimal()), reverse=True)

    def describe(self, step: int) -> SavedCheckpoint:
        """The manifest of one.

        Raises:
            Absent: it is not complete.
            Damaged: its manifest cannot be read.
        """
        name = self._complete(step)
        try:
            return msgspec.json.decode(self._store.read(name), type=SavedCheckpoint)
        except msgspec.MsgspecError:
            raise Damaged(f"{name}: it cannot be read") from None

    def load(self, state: dict[str, Any], *, step: int | None = None) -> SavedCheckpoint | None:
        """Fills the tensors of `state` in place from the newest good checkpoint, or the one of `step`.

        One that is damaged is passed over for the one before it, and that is logged. Keys of `state` that a
        checkpoint lacks are left alone.

        Returns:
            Its manifest; None where no checkpoint is.

        Raises:
            InputError: it is of another identity.
            StorageError: the store failed; or the one of `step` is damaged or not there.
        """
        steps = self._share(([step] if step is not None else self.steps()) if self._first else None)
        for one in steps:
            found, problem = self._share(self._good(one) if self._first else None)
            if not problem:
                refuse_other(found.identity, self._identity, f"step {one}")
                problem = self._read(found, state)
            if not problem:
                return found  # type: ignore[no-any-return]
            if step is not None:
                raise Damaged(f"checkpoint {one}: {problem}")
            if self._log is not None and self._first:
                self._log(f"checkpoint {one} is passed over: {problem}")
        return None

    def _write(self, staged: Any, manifest: SavedCheckpoint) -> None:
        """Runs on every rank, beside training; its collectives have the group to themselves."""
        folder = f"{self._prefix}/data/{manifest.step:0{_STEP_DIGITS}d}-{self._attempt}"
        writer = FileSystemWriter(folder, single_file_per_rank=True, sync_files=False)
        # Closing a stored file makes it durable: there is nothing for the writer to sync.
        writer.fs = cast(Any, _StoreFiles(self._store))
        writer.path = folder
        save(staged, storage_writer=writer, process_group=self._group, no_dist=self._group is None)
        problem = ""
        if self._first:
            try:
                self._publish(folder, manifest)
            except StorageError as error:
                problem = str(error)
        problem = self._share(problem)
        if problem:
            raise StorageError(problem)

    def _publish(self, folder: str, manifest: SavedCheckpoint) -> None:
        """Makes it complete, if all of it is there, and removes those beyond retention."""
        files = {}
        for one in verify(self._store, folder, deep=False):
            if isinstance(one, Problem):
                raise Damaged(f"{one.name}: {one.what}")
            files[one.removeprefix(f"{folder}/")] = self._store.look_up(one).version
        if ".metadata" not in files:
            raise Damaged(f"{folder}: .metadata is not there")
        whole = msgspec.structs.replace(manifest, files=files)
        self._store.write(self._complete(manifest.step), msgspec.json.encode(whole)).result()
        for step in self.steps()[self._keep :]:
            self._remove(step)

    def _remove(self, step: int) -> None:
        """The manifest goes first: what is left of a removal that died is only garbage under `data`."""
        with suppress(Absent, Pinned):
            folder = self._folder_of(self.describe(step))
            self._store.remove(self._complete(step))
            for entry in list(self._store.files(folder)):
                with suppress(Absent, Pinned):
                    self._store.remove(entry.name)

    def _good(self, step: int) -> tuple[SavedCheckpoint | None, str]:
        """A checkpoint's manifest, or what is wrong with it without reading its data."""
        try:
            found = self.describe(step)
            for name, version in found.files.items():
                if self._store.look_up(f"{self._folder_of(found)}/{name}").version != version:
                    return None, f"{name} was replaced"
        except (Absent, Damaged) as error:
            return None, str(error)
        return found, ""

    def _read(self, found: SavedCheckpoint, state: dict[str, Any]) -> str:
        """Loads it on every rank; returns what is damaged, the same on all."""
        reader = FileSystemReader(self._folder_of(found))
        reader.fs = cast(Any, _StoreFiles(self._store))
        reader.path = self._folder_of(found)
        try:
            known = reader.read_metadata().state_dict_metadata
            wanted: dict[str, Any] = {name: value for name, value in state.items() if name in known}
            load(wanted, storage_reader=reader, process_group=self._group, no_dist=self._group is None)
        except CheckpointException as error:
            if all(isinstance(inner[0], Absent | Damaged) for inner in error.failures.values()):
                return _told(error)
            raise StorageError(f"a checkpoint could not be read: {_told(error)}") from error
        return ""

    def _share(self, value: Any) -> Any:
        """The first rank's value, on every rank."""
        if self._group is None:
            return value
        box = [value]
        dist.broadcast_object_list(box, group_src=0, group=self._group)
        return box[0]

    def _complete(self, step: int) -> str:
        return f"{self._prefix}/complete/{step:0{_STEP_DIGITS}d}"

    def _folder_of(self, found: SavedCheckpoint) -> str:
        return f"{self._prefix}/data/{found.step:0{_STEP_DIGITS}d}-{found.attempt}"


class _StoreFiles(FileSystemBase):
    """What Distributed Checkpoint needs of a file system."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Generator[Any, None, None]:
        name = os.fspath(path)
        if mode == "rb":
            with self._store.open(name) as source:
                yield source
        elif mode == "wb":
            with StoreWriter(self._store.create(name, part_bytes=PART_BYTES)) as target:
                yield target
        else:
            raise InvariantError(f"a checkpoint's file was opened with mode {mode!r}")

    def concat_path(self, path: str | os.PathLike[str], suffix: str) -> str:
        return f"{os.fspath(path)}/{suffix}"

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        # Only the metadata, which is small, is ever renamed.
        self._store.write(os.fspath(new_path), self._store.read(os.fspath(path))).result()
        self._store.remove(os.fspath(path))

    def init_path(self, path: str | os.PathLike[str]) -> str:
        return os.fspath(path)

    def mkdir(self, path: str | os.PathLike[str]) -> None:
        """Nothing: a folder is there as long as something is in it."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return isinstance(checkpoint_id, str)

    def exists(self, path: str | os.PathLike[str]) -> bool:
        try:
            self._store.look_up(os.fspath(path))
        except Absent:
            return False
        return True

    def rm_file(self, path: str | os.PathLike[str]) -> None:
        self._store.remove(os.fspath(path))


def _told(error: BaseException) -> str:
    """One line for an error, with the reason of each rank where PyTorch wrapped them."""
    if isinstance(error, CheckpointException):
        return "; ".join(dict.fromkeys(_told(inner[0]) for inner in error.failures.values()))
    return str(error).partition("\n")[0] or type(error).__name__
