"""One rank of the built-in trainer: `python -m groundplane.platform.training.worker`.

Environment: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT as torchrun sets them; GROUNDPLANE_JOB_DIR (holds
`train.json`, gets all that outlives attempts); GROUNDPLANE_WORK_DIR (this attempt's folder, gets
`progress.jsonl`); GROUNDPLANE_FENCE (this attempt's fencing number; one more than the last where absent);
OMP_NUM_THREADS. Exit codes: 0 done, 1 failed, 2 bad input, 143 stopped by SIGTERM with its state saved.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import msgspec

from groundplane.platform.training import corpus
from groundplane.platform.training.failures import TrainingFailure
from groundplane.platform.training.fence import Fence
from groundplane.platform.training.files import publish_over, remove_tree, write_json
from groundplane.spec.errors import InputError
from groundplane.spec.job import TrainSpec
from groundplane.spec.load import from_data
from groundplane.spec.units import show_bytes

STOPPED_EXIT_CODE: Final = 128 + signal.SIGTERM
_SLACK_BYTES: Final = 64 << 20


class Settings(msgspec.Struct, frozen=True):
    """What the environment says."""

    rank: int
    world_size: int
    job_dir: Path
    work_dir: Path
    fence: int | None


def main() -> None:
    """Runs this rank; prints one line and exits with 1 or 2 where it cannot."""
    rank = 0
    sys.excepthook = _crash
    try:
        settings = read_settings(os.environ)
        rank = settings.rank
        spec = read_spec(settings)
        code = run(settings, spec)
    except InputError as error:
        _leave(str(error), 2, say=rank == 0)
    except TrainingFailure as error:
        _leave(str(error), error.exit_code, say=True)
    except OSError as error:
        code = 2 if error.errno in {errno.ENOSPC, errno.EDQUOT} else 1
        _leave(f"{error.filename or 'system'}: {error.strerror or error}", code, say=True)
    except RuntimeError as error:
        if not _lost_peer(error):
            raise
        _leave(f"rank {rank} cannot reach the other ranks: {str(error).splitlines()[0]}", 1, say=True)
    else:
        sys.exit(code)


def read_settings(environment: Any) -> Settings:
    """Settings from a mapping such as `os.environ`.

    Raises:
        InputError: a variable is missing or no number.
    """

    def number(name: str, default: str | None = None) -> int:
        value = environment.get(name, default)
        if value is None or not value.isdigit():
            raise InputError("must be set to a whole number", field=name, value=value)
        return int(value)

    def folder(name: str) -> Path:
        value = environment.get(name)
        if not value or not Path(value).is_dir():
            raise InputError("must be set to a folder that exists", field=name, value=value)
        return Path(value)

    fence = number("GROUNDPLANE_FENCE") if "GROUNDPLANE_FENCE" in environment else None
    settings = Settings(
        rank=number("RANK", "0"),
        world_size=number("WORLD_SIZE", "1"),
        job_dir=folder("GROUNDPLANE_JOB_DIR"),
        work_dir=folder("GROUNDPLANE_WORK_DIR"),
        fence=fence,
    )
    if settings.rank >= settings.world_size:
        raise InputError(f"must be below WORLD_SIZE {settings.world_size}", field="RANK", value=settings.rank)
    return settings


def read_spec(settings: Settings) -> TrainSpec:
    """The job's `train.json`, checked against the number of ranks.

    Raises:
        InputError: missing, malformed, or a global batch that the ranks cannot share.
    """
    file = settings.job_dir / "train.json"
    try:
        data = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise InputError("no such file", file=str(file)) from None
    except ValueError:
        raise InputError("is not valid JSON", file=str(file)) from None
    spec = from_data(data, TrainSpec, file=str(file), bare=True)
    if spec.global_batch % (spec.micro_batch * settings.world_size):
        raise InputError(
            f"must be divisible by micro_batch x ranks ({spec.micro_batch} x {settings.world_size})",
            file=str(file),
            field="global_batch",
            value=spec.global_batch,
        )
    return spec


def check_disk(folder: Path, spec: TrainSpec) -> None:
    """Refuses a run whose checkpoints and export cannot fit.

    Counted: (kept + 1 in the making) checkpoints of weights and two moments in float32, and the export twice.

    Raises:
        InputError: too little is free in the folder's file system.
    """
    from groundplane.platform.training.presets import num_parameters

    weights_bytes = 4 * num_parameters(spec.model)
    present_bytes = sum(file.stat().st_size for file in folder.glob("checkpoints/step-*/*"))
    needed_bytes = (
        3 * weights_bytes * (spec.keep_checkpoints + 1) + 2 * weights_bytes + _SLACK_BYTES - present_bytes
    )
    free_bytes = shutil.disk_usage(folder).free
    if needed_bytes > free_bytes:
        raise InputError(
            f"too little disk in {folder}: checkpoints and export need {show_bytes(needed_bytes)}, "
            f"{show_bytes(free_bytes)} are free; lower keep_checkpoints or take another folder"
        )


def run(settings: Settings, spec: TrainSpec) -> int:
    """Trains to the end or to SIGTERM; returns the exit code."""
    # torch takes seconds to import; what can be refused without it has been by now.
    if settings.rank == 0:
        corpus.check(spec.data, spec.text_field)
        check_disk(settings.job_dir, spec)
    import torch

    from groundplane.platform.training import parallel

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    ranks = parallel.open_ranks(settings.rank, settings.world_size)
    fence, info = _prepare(settings, spec, ranks)
    if _finished(settings.job_dir, spec):
        _log(f"already complete: {settings.job_dir / 'final.json'}", ranks)
    elif not _train(settings, spec, ranks, fence, info):
        _log("stopped as asked; the state is saved", ranks)
        parallel.close_ranks()
        return STOPPED_EXIT_CODE
    parallel.close_ranks()
    return 0


def _prepare(settings: Settings, spec: TrainSpec, ranks: Any) -> tuple[Fence | None, Any]:
    """Rank 0 takes the fence and builds tokenizer and tokens; all wait, and all fail if it fails."""
    from groundplane.platform.training import tokens

    fence, outcome, failure = None, None, None
    if ranks.first:
        try:
            fence = Fence(settings.job_dir, settings.fence)
            with fence.held():
                for leftover in settings.job_dir.glob("*.tmp.*"):
                    remove_tree(leftover) if leftover.is_dir() else leftover.unlink()
            outcome = (fence.attempt, tokens.prepare(settings.job_dir, spec, attempt=fence.attempt))
        except (InputError, TrainingFailure, OSError) as error:
            failure = error
    outcome = ranks.share((outcome, type(failure).__name__ if failure else ""))
    if failure is not None:
        raise failure
    if outcome[1]:
        # Rank 0 says why; the others leave with the same code and in silence.
        _leave("", 2 if outcome[1] == "InputError" else 1, say=False)
    return fence, outcome[0]


def _finished(job_dir: Path, spec: TrainSpec) -> bool:
    try:
        final = json.loads((job_dir / "final.json").read_bytes())
    except FileNotFoundError:
        return False
    return bool(final["step"] == spec.steps) and (job_dir / "export" / "model.gguf").is_file()


def _train(settings: Settings, spec: TrainSpec, ranks: Any, fence: Fence | None, prepared: Any) -> bool:
    """From the newest checkpoint to the export. Returns False where it was asked to stop."""
    from groundplane.platform.training.checkpoint import Checkpoints
    from groundplane.platform.training.data import TokenData
    from groundplane.platform.training.loop import Progress, Trainer
    from groundplane.platform.training.model import Llama
    from groundplane.platform.training.parallel import SpreadModel

    attempt, info = prepared
    progress = Progress(settings.work_dir) if ranks.first else None
    checkpoints = Checkpoints(
        settings.job_dir / "checkpoints",
        ranks,
        fence=fence,
        attempt=attempt,
        keep=spec.keep_checkpoints,
        identity=identity(spec, info),
        on_commit=lambda step: progress.write({"checkpoint": step}) if progress else None,
        log=lambda line: _log(line, ranks),
    )
    model = Llama(spec.model, spec.seq)
    model.initialize(spec.seed)
    data = TokenData(settings.job_dir / "data" / "tokens.bin", info.dtype, spec.seq, spec.seed)
    stopping = _stop_flag()
    trainer = Trainer(
        spec, ranks, SpreadModel(model, spec.parallel, spec.precision), data, checkpoints, progress, stopping
    )
    if trainer.resume():
        _log(f"resumed at step {trainer.step} of {spec.steps}", ranks)
    else:
        _log(f"begins: {info.num_tokens} tokens of text, {data.num_samples} samples", ranks)
    if not trainer.run():
        return False
    _export(settings, spec, ranks, fence, model, trainer)
    return True


def identity(spec: TrainSpec, info: Any) -> dict[str, Any]:
    """What a checkpoint and the run that goes on from it must have in common."""
    return {
        **{f"model.{name}": value for name, value in msgspec.to_builtins(spec.model).items()},
        "tokenizer": info.tokenizer,
        "data": info.sha256,
        "seq": spec.seq,
        "global_batch": spec.global_batch,
        "seed": spec.seed,
    }


def _export(
    settings: Settings, spec: TrainSpec, ranks: Any, fence: Fence | None, model: Any, trainer: Any
) -> None:
    """Gathers the weights on rank 0, which writes `export/` and, last of all, `final.json`."""
    from groundplane.platform.training import export
    from groundplane.platform.training.parallel import whole

    weights = {name: whole(parameter) for name, parameter in model.named_parameters()}
    peaks = ranks.gather(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    if fence is None:
        return
    built = settings.job_dir / f"export.tmp.{fence.attempt}"
    remove_tree(built)
    built.mkdir()
    export.write_export(built, weights, spec.model, spec.seq, settings.job_dir / "tokenizer")
    final = {
        "step": trainer.step,
        "loss": trainer.loss,
        "weights_sha256": export.weights_sha256(weights),
        "tokens": trainer.tokens,
        "peak_memory_bytes": peaks,
    }
    with fence.held():
        publish_over(built, settings.job_dir / "export", attempt=fence.attempt)
        write_json(settings.job_dir / "final.json", final, attempt=fence.attempt)
    _log(f"done: step {trainer.step}, loss {trainer.loss:.4f}", ranks)


def _stop_flag() -> Any:
    """A function that says whether SIGTERM has come."""
    came: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: came.append(number))
    return lambda: bool(came)


def _log(line: str, ranks: Any) -> None:
    if ranks.first:
        sys.stderr.write(f"trainer: {line}\n")
        sys.stderr.flush()


def _lost_peer(error: RuntimeError) -> bool:
    if type(error).__name__ in {"DistNetworkError", "DistBackendError", "DistStoreError"}:
        return True
    marks = ("Connection closed by peer", "gloo", "Connection reset", "Broken pipe")
    return any(mark in str(error) for mark in marks)


def _crash(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """For what nobody foresaw: its traceback into the rank's log, and out without waiting for threads."""
    if issubclass(kind, KeyboardInterrupt):
        _leave("interrupted", 130, say=True)
    sys.__excepthook__(kind, error, trace)
    _leave("", 1, say=False)


def _leave(message: str, code: int, *, say: bool) -> None:
    """Ends the process at once: threads that wait for a dead rank must not hold it up."""
    if say:
        sys.stderr.write(f"groundplane: {message}\n")
    sys.stderr.flush()
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
