"""Checkpoints that are complete or invisible: written in the background, sharded, verified before use.

A save copies the state to memory (that is all the training waits for) and hands it to PyTorch Distributed
Checkpoint, which writes each rank's part to `checkpoints/step-N.tmp.ATTEMPT/`. Then every rank sums its own
files, rank 0 writes `manifest.json`, forces all to the disk and renames the folder to `step-N`, under the
fence. A load takes the newest folder whose every file has the size and SHA-256 of the manifest, and says
which ones it passed over. Knows nothing of models or optimizers: state is a flat dict of tensors.
"""

from __future__ import annotations

import errno
import hashlib
import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save

from groundplane.platform.training.failures import TrainingFailure
from groundplane.platform.training.fence import Fence
from groundplane.platform.training.files import publish_over, remove_tree, sha256_file, write_json
from groundplane.platform.training.parallel import Ranks
from groundplane.spec.errors import GroundplaneError, InputError, InvariantError

MANIFEST: Final = "manifest.json"
_STEP_FOLDER: Final = re.compile(r"^step-(\d+)$")


class FileRecord(msgspec.Struct, frozen=True):
    """Size and SHA-256 of one file of a checkpoint."""

    size_bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True):
    """What `manifest.json` says. `digest` is over all other fields, so that a flipped bit in it is seen
    too."""

    step: int
    loss: float
    tokens: int
    world_size: int
    fence: int
    identity: dict[str, Any]
    """What a run must have in common with this checkpoint to go on from it: model shape, tokenizer, data
    order."""
    files: dict[str, FileRecord]
    digest: str = ""

    def sealed(self) -> Manifest:
        """The same with its digest."""
        return msgspec.structs.replace(self, digest=self.computed_digest())

    def computed_digest(self) -> str:
        """SHA-256 over every field but `digest`."""
        plain = msgspec.to_builtins(msgspec.structs.replace(self, digest=""))
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


class Checkpoints:
    """The checkpoints of one job, as one attempt sees them. Every method is called by every rank, in step.

    Args:
        folder: `checkpoints/` in the job's folder.
        ranks: this gang.
        fence: the attempt's right to change the folder, on rank 0; None on the others.
        attempt: the attempt's mark in temporary names.
        keep: complete checkpoints that are kept.
        identity: see `Manifest.identity`.
        on_commit: called on rank 0, from another thread, with the step of a checkpoint that has become
            durable.
        log: takes one line for people, on rank 0.
    """

    def __init__(
        self,
        folder: Path,
        ranks: Ranks,
        *,
        fence: Fence | None,
        attempt: str,
        keep: int,
        identity: dict[str, Any],
        on_commit: Callable[[int], None],
        log: Callable[[str], None],
    ) -> None:
        self._folder = folder
        self._ranks = ranks
        self._fence = fence
        self._attempt = attempt
        self._keep = keep
        self._identity = identity
        self._on_commit = on_commit
        self._log = log
        self._running: threading.Thread | None = None
        self._durable_step: int | None = None
        self._failure: Exception | CheckpointException | None = None

    def save(self, state: dict[str, Tensor], *, step: int, loss: float, tokens: int) -> None:
        """Begins a save; returns once the state is copied to memory.

        A save that still runs is waited for first: two at a time would only share one disk.

        Raises:
            TrainingFailure: the save before this one failed.
        """
        self.finish()
        target = self._folder / f"step-{step}.tmp.{self._attempt}"
        # The writer copies to memory itself (it is its own stager) and forces its files to the disk.
        writer = FileSystemWriter(target, single_file_per_rank=True, sync_files=True)
        future = async_save(state, storage_writer=writer, process_group=self._ranks.background)
        manifest = Manifest(step, loss, tokens, self._ranks.world_size, 0, self._identity, {})

        def complete() -> None:
            try:
                future.result()  # type: ignore[union-attr]
                self._commit(target, manifest)
                self._durable_step = step
            except (CheckpointException, GroundplaneError, RuntimeError, OSError) as error:
                # Carried to the training thread, which raises it.
                self._failure = error

        self._durable_step = None
        self._running = threading.Thread(target=complete, name=f"checkpoint-{step}", daemon=True)
        self._running.start()

    def finish(self) -> None:
        """Waits until the save that runs, if any, is durable.

        Raises:
            TrainingFailure: it failed.
        """
        if self._running is None:
            return
        self._running.join()
        self._running = None
        self.raise_failure()
        if self._durable_step is None:
            raise InvariantError("a checkpoint's thread ended without a result")

    def raise_failure(self) -> None:
        """Raises what went wrong in the background, if anything did."""
        failure = self._failure
        if failure is None:
            return
        if isinstance(failure, TrainingFailure):
            raise failure
        raise TrainingFailure(
            f"a checkpoint could not be written: {describe(failure)}", exit_code=exit_code_of(failure)
        ) from failure

    def load_latest(self, make_state: Callable[[], dict[str, Tensor]]) -> Manifest | None:
        """Reads the newest good checkpoint into the tensors of `make_state()`, in place.

        Keys that the checkpoint lacks (the random state of a rank it did not have) are left alone.

        Returns:
            Its manifest, or None where no checkpoint is.

        Raises:
            InputError: the newest good one is of another model, tokenizer or data order.
        """
        found = self._ranks.share(self._found() if self._ranks.first else None)
        for name, manifest, damage in found:
            problems = self._ranks.gather(damage or self._verify(self._folder / name, manifest))
            problem = next((text for text in problems if text), "")
            if problem:
                if self._ranks.first:
                    self._log(f"checkpoint {name} is skipped, the one before it is taken: {problem}")
                continue
            refuse_other(manifest.identity, self._identity, name)
            self._read(self._folder / name, make_state())
            return manifest  # type: ignore[no-any-return]
        return None

    def _found(self) -> list[tuple[str, Manifest | None, str]]:
        """Complete-looking checkpoints, newest first, each with its manifest or what is wrong with it.

        What earlier attempts left half written goes away here.
        """
        self._folder.mkdir(exist_ok=True)
        if self._fence is not None:
            with self._fence.held():
                for entry in self._folder.iterdir():
                    if ".tmp." in entry.name:
                        remove_tree(entry)
        return [(f"step-{step}", *read_manifest(self._folder / f"step-{step}")) for step in self._steps()]

    def _steps(self) -> list[int]:
        matches = (_STEP_FOLDER.match(entry.name) for entry in self._folder.iterdir())
        return sorted((int(match[1]) for match in matches if match), reverse=True)

    def _verify(self, folder: Path, manifest: Manifest) -> str:
        """What is wrong with this rank's share of a checkpoint's files, or an empty text."""
        names = sorted(manifest.files)[self._ranks.rank :: self._ranks.world_size]
        for name in names:
            record = manifest.files[name]
            try:
                size = (folder / name).stat().st_size
                if size != record.size_bytes:
                    return f"{name} has {size} bytes instead of {record.size_bytes}"
                if sha256_file(folder / name) != record.sha256:
                    return f"{name} has another SHA-256 than its manifest says"
            except OSError as error:
                return f"{name}: {error.strerror}"
        return ""

    def _read(self, folder: Path, state: dict[str, Tensor]) -> None:
        reader = FileSystemReader(folder)
        known = reader.read_metadata().state_dict_metadata
        wanted: dict[str, Any] = {name: tensor for name, tensor in state.items() if name in known}
        load(wanted, storage_reader=reader, process_group=self._ranks.background)

    def _commit(self, target: Path, manifest: Manifest) -> None:
        """Runs in the background on every rank: sums, manifest, rename, retention.

        Its collectives follow those of the writer in the same group, and a save begins only after this ended.
        """
        own, problem, code = {}, "", 1
        try:
            written = [
                *target.glob(f"__{self._ranks.rank}_*"),
                *([target / ".metadata"] if self._ranks.first else []),
            ]
            for file in written:
                own[file.name] = FileRecord(file.stat().st_size, sha256_file(file))
        except OSError as error:
            problem = describe(error)
        parts = self._ranks.gather((own, problem), background=True)
        problem = next((text for _, text in parts if text), "")
        if not problem and self._fence is not None:
            try:
                records = {name: record for files, _ in parts for name, record in files.items()}
                self._publish(target, msgspec.structs.replace(manifest, files=records))
            except (OSError, TrainingFailure) as error:
                problem, code = describe(error), exit_code_of(error)
                remove_tree(target)
        problem, code = self._ranks.share((problem, code), background=True)
        if problem:
            raise TrainingFailure(f"a checkpoint could not be written: {problem}", exit_code=code)
        if self._ranks.first:
            self._on_commit(manifest.step)

    def _publish(self, target: Path, manifest: Manifest) -> None:
        fence = self._fence
        if fence is None:
            return
        manifest = msgspec.structs.replace(manifest, fence=fence.number).sealed()
        write_json(target / MANIFEST, msgspec.to_builtins(manifest), attempt=self._attempt)
        final = self._folder / f"step-{manifest.step}"
        with fence.held():
            publish_over(target, final, attempt=self._attempt)
            for step in self._steps()[self._keep :]:
                aside = self._folder / f"step-{step}.tmp.{self._attempt}.old"
                (self._folder / f"step-{step}").rename(aside)
                remove_tree(aside)


def read_manifest(folder: Path) -> tuple[Manifest | None, str]:
    """A checkpoint's manifest, or what is wrong with it."""
    try:
        manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
    except OSError as error:
        return None, f"{MANIFEST}: {error.strerror}"
    except msgspec.MsgspecError:
        return None, f"{MANIFEST} is damaged"
    if manifest.digest != manifest.computed_digest():
        return None, f"{MANIFEST} is damaged"
    return manifest, ""


def refuse_other(saved: dict[str, Any], wanted: dict[str, Any], name: str) -> None:
    """Compares what a checkpoint was made with and what the job asks for.

    Raises:
        InputError: they differ; names the first difference.
    """
    for key, value in wanted.items():
        if saved.get(key) != value:
            raise InputError(
                f"checkpoint {name} was made with {key} {saved.get(key)!r}; take a new job folder or go back",
                field=key,
                value=value,
            )


def exit_code_of(error: BaseException) -> int:
    """2 for a full disk, which a restart does not empty; the failure's own code; else 1."""
    if isinstance(error, CheckpointException):
        return max(exit_code_of(inner[0]) for inner in error.failures.values())
    if isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return 2
    causes = [cause for cause in (error.__cause__, error.__context__) if cause is not None]
    inherited = max((exit_code_of(cause) for cause in causes), default=1)
    return error.exit_code if isinstance(error, TrainingFailure) else inherited


def describe(error: BaseException) -> str:
    """One line for an error, with the reason of each rank where PyTorch wrapped them."""
    if isinstance(error, CheckpointException):
        reasons = dict.fromkeys(describe(inner[0]) for inner in error.failures.values())
        return "; ".join(reasons)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error).splitlines()[0] if str(error) else type(error).__name__
