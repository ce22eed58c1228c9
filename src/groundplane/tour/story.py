"""The tour, chapter by chapter. Whatever happens, nothing is left running (unless it is to be kept up)."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from groundplane.control.replay import replay
from groundplane.perfmodel.eager import price_host_training
from groundplane.platform.training.presets import TOUR
from groundplane.probe.run import probe_machine
from groundplane.sim.journal_file import read_journal
from groundplane.spec import units
from groundplane.spec.cluster import ClusterSpec
from groundplane.spec.dump import to_yaml
from groundplane.spec.errors import InputError
from groundplane.spec.job import JobSpec
from groundplane.tour import result as results
from groundplane.tour import serving
from groundplane.tour.platform import TourPlatform
from groundplane.tour.result import Books, Fault, Prediction, TourResult, TrainingRun
from groundplane.tour.stage import Line, Stage
from groundplane.tour.training import JobWatch

RANKS = 2
MARKER = ".groundplane-tour"
"""Marks a folder that a tour made, and that the next one may therefore remove."""


class Tour:
    """One run of the story in a folder of its own."""

    def __init__(self, folder: Path, stage: Stage, *, keep: bool) -> None:
        self.folder = folder.absolute()
        self._stage = stage
        self._keep = keep
        self._platform = TourPlatform(self.folder / "state")

    def run(self) -> TourResult:
        """Tells the whole story; stops everything at the end, at a failure and at Ctrl-C.

        Raises:
            InputError: the folder holds something else, or the machine is too small.
            GroundplaneError: a chapter did not come out as it should.
        """
        begun_s = time.monotonic()
        self._make_folder()
        ended_well = False
        try:
            cluster = self._probe()
            prediction = self._predict(cluster)
            self._bring_up()
            job = self._job_spec()
            disturbed, faults = self._train(job)
            undisturbed = self._train_undisturbed(job, disturbed)
            caller = self._serve(disturbed)
            answers = self._call(caller)
            books = self._read_books(caller)
            ended_well = True
        finally:
            if not (self._keep and ended_well):
                with _undisturbed():
                    self._platform.stop()
        tour = TourResult(
            prediction=prediction,
            disturbed=disturbed,
            undisturbed=undisturbed,
            faults=faults,
            answers=answers,
            books=books,
            wall_s=time.monotonic() - begun_s,
            folder=str(self.folder),
        )
        self._write(tour)
        return tour

    def _make_folder(self) -> None:
        try:
            if self.folder.exists():
                if not (self.folder / MARKER).exists() and any(self.folder.iterdir()):
                    raise InputError(
                        "exists and was not made by a tour", field="--dir", value=str(self.folder)
                    )
                self._claim()
                self._platform.stop()
                shutil.rmtree(self.folder)
            self.folder.mkdir(parents=True)
            (self.folder / MARKER).touch()
            self._claim()
        except OSError as error:
            raise InputError(
                f"cannot be made: {error.strerror}", field="--dir", value=str(self.folder)
            ) from None

    def _claim(self) -> None:
        """Locks the folder until this process ends: a second tour must not sweep away a running one."""
        descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise InputError(
                "another tour is running in it; give this one a folder of its own",
                field="--dir",
                value=str(self.folder),
            ) from None

    def _probe(self) -> ClusterSpec:
        self._stage.chapter("Measure this machine", "groundplane probe --quick --out cluster.yaml")
        with self._stage.moving("measuring") as line:
            found = probe_machine(self.folder, quick=True, progress=_show_on(line))
        (self.folder / "cluster.yaml").write_text(to_yaml(found.cluster), encoding="utf-8")
        chip = found.cluster.chip
        rates = ", ".join(
            f"{units.show_flops_per_s(rate)} {dtype}" for dtype, rate in chip.peak_flops_per_s.items()
        )
        self._stage.say(f"{found.machine.model}, {len(found.machine.cores)} cores; a core: {rates}")
        self._stage.say(
            f"memory {units.show_bytes_per_s(chip.memory_bytes_per_s)} a core, "
            f"operator overhead {units.show_duration(chip.launch_overhead_s)}"
        )
        if len(found.machine.cores) < RANKS:
            raise InputError(f"the tour needs {RANKS} cores", value=len(found.machine.cores))
        return found.cluster

    def _predict(self, cluster: ClusterSpec) -> Prediction:
        self._stage.chapter(
            "Predict a training job on it", "groundplane plan train job.yaml --cluster cluster.yaml"
        )
        job = self._job_spec()
        (self.folder / "job.yaml").write_text(to_yaml(job), encoding="utf-8")
        estimate = price_host_training(TOUR, RANKS, cluster)
        prediction = Prediction(
            step_s=estimate.step_s,
            step_low_s=estimate.step_low_s,
            step_high_s=estimate.step_high_s,
            memory_bytes=estimate.total_memory_bytes,
            tokens_per_s=estimate.tokens_per_s,
            bottleneck=estimate.bottleneck,
            stages_s=estimate.stages_s,
        )
        _write_json(self.folder / "prediction.json", prediction)
        self._stage.say(
            f"step {units.show_duration(estimate.step_s)} "
            f"({units.show_duration(estimate.step_low_s)} to {units.show_duration(estimate.step_high_s)}), "
            f"{estimate.tokens_per_s:,.0f} tokens/s, {units.show_bytes(estimate.total_memory_bytes)} a rank"
        )
        self._stage.say(f"bottleneck: {estimate.bottleneck}; written down in prediction.json")
        return prediction

    def _bring_up(self) -> None:
        self._stage.chapter("Bring the platform up", "groundplane up")
        begun_s = time.monotonic()
        up = self._platform.start()
        self._stage.say(
            f"control plane on {up.url}, gateway on {up.gateway_url}, "
            f"after {time.monotonic() - begun_s:.1f} s"
        )

    def _job_spec(self) -> JobSpec:
        return JobSpec(name="tour", ranks=RANKS, memory_per_rank_bytes=2 << 30, train=TOUR)

    def _train(self, job: JobSpec) -> tuple[TrainingRun, list[Fault]]:
        self._stage.chapter("Train on real text, and kill things", "groundplane submit job.yaml")
        run, faults = JobWatch(self._platform, job, self._stage).run(disturbed=True)
        self._stage.say(
            f"done in {run.wall_s:.0f} s: loss {run.steps[0].loss:.2f} to {run.steps[-1].loss:.2f}, "
            f"{run.attempts} attempts, weights {run.weights_sha256[:16]}"
        )
        return run, faults

    def _train_undisturbed(self, job: JobSpec, disturbed: TrainingRun) -> TrainingRun:
        self._stage.chapter("Train the same job undisturbed", "groundplane submit job.yaml")
        alone = msgspec.structs.replace(job, name="tour-undisturbed")
        run, _ = JobWatch(self._platform, alone, self._stage).run(disturbed=False)
        same = run.weights_sha256 == disturbed.weights_sha256
        self._stage.say(
            f"done in {run.wall_s:.0f} s: weights {run.weights_sha256[:16]}: "
            + ("[green]bit-identical[/green]" if same else "[red]DIFFERENT[/red]")
        )
        return run

    def _serve(self, trained: TrainingRun) -> serving.Caller:
        self._stage.chapter(
            "Serve what was trained, and a real chat model", "groundplane deploy service.yaml"
        )
        final = serving.export_folder(self._platform.state, trained.job_id)
        version = self._platform.post(
            "/api/models", {"name": serving.OWN_MODEL, "path": str(final), "job_id": trained.job_id}
        )
        self._stage.say(
            f"registered {version['name']}:{version['version']} (sha256 {version['sha256'][:16]})"
        )
        for spec in serving.service_specs():
            (self.folder / f"{spec.name}.yaml").write_text(to_yaml(spec), encoding="utf-8")
            self._platform.post("/api/services", msgspec.to_builtins(spec))
        names = [spec.name for spec in serving.service_specs()]
        with self._stage.moving("starting") as line:
            spent_s = serving.wait_for_models(self._platform, names, line)
        self._stage.say(f"{' and '.join(names)} ready after {spent_s:.1f} s")
        made = self._platform.post("/api/keys", {"name": "tour", "project": "tour"})
        return serving.Caller(self._platform.gateway_url, made["secret"])

    def _call(self, caller: serving.Caller) -> list[results.Answer]:
        self._stage.chapter("Call them with the official openai client", "see README: a first API call")
        answers = [
            caller.chat(serving.CHAT_MODEL, "What is the capital of France?"),
            caller.complete(serving.OWN_MODEL, "def __init__(self"),
        ]
        for answer in answers:
            self._stage.say(f"[cyan]{answer.model}[/cyan]  > {answer.prompt}")
            self._stage.console.print(f"     {' '.join(answer.text.split())}", markup=False, soft_wrap=True)
        return answers

    def _read_books(self, caller: serving.Caller) -> Books:
        self._stage.chapter("Close the books", "groundplane usage;  groundplane replay STATE")
        used = self._settled_usage(caller.requests)
        ledger = self._platform.get("/api/ledger")
        report = replay(read_journal(self._platform.state))
        return Books(
            tokens_in=used["tokens_in"],
            tokens_out=used["tokens_out"],
            client_tokens_in=caller.tokens_in,
            client_tokens_out=caller.tokens_out,
            requests=used["num_requests"],
            device_ns={
                name.removesuffix("_ns"): value
                for name, value in ledger.items()
                if name.endswith("_ns") and name not in {"now_ns", "total_ns"}
            },
            device_total_ns=ledger["total_ns"],
            events_replayed=report.num_events,
            actions_replayed=report.num_actions,
            replay_is_identical=report.divergence is None,
        )

    def _settled_usage(self, requests: int) -> dict[str, Any]:
        """The ledger's sums once all requests are settled, which happens just behind the answers."""
        deadline_s = time.monotonic() + 10.0
        used: dict[str, Any] = {"num_requests": 0, "tokens_in": 0, "tokens_out": 0}
        while used["num_requests"] < requests and time.monotonic() < deadline_s:
            found = self._platform.get("/api/usage?by=project&project=tour")
            used = found[0] if found else used
            time.sleep(0.05)
        return used

    def _write(self, tour: TourResult) -> None:
        _write_json(self.folder / "result.json", tour)
        results.page(tour).write(self.folder / "report.html")


def show_closing(tour: TourResult, stage: Stage) -> None:
    """The table at the end: predicted and measured, faults, calls, books, and where to go on."""
    stage.console.print("\n[bold]Predicted and measured[/bold]")
    stage.table(("figure", "predicted", "measured", "error"), results.prediction_rows(tour))
    stage.console.print("\n[bold]Faults and what they cost[/bold]")
    stage.table(("fault", "at step", "steps repeated", "time lost"), results.fault_rows(tour))
    stage.console.print("\n[bold]API calls[/bold]")
    stage.table(("model", "call", "first token", "tokens", "tokens/s"), results.answer_rows(tour))
    stage.console.print("\n[bold]Core-seconds[/bold]")
    stage.table(("account", "core-seconds", "share"), results.device_rows(tour))
    books = tour.books
    stage.console.print(
        f"\nTokens: ledger {books.tokens_in} in, {books.tokens_out} out; "
        f"clients {books.client_tokens_in} in, {books.client_tokens_out} out. "
        f"Journal: {books.events_replayed} events replay to the same {books.actions_replayed} actions.",
        soft_wrap=True,
    )


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Signals that end a program do nothing meanwhile: a second Ctrl-C must not cut the clean-up short."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    former = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _show_on(line: Line) -> Callable[[str, str], None]:
    return lambda phase, what: line.set(f"measuring {phase}: {what}")


def _write_json(path: Path, value: Any) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(value)) + b"\n")
