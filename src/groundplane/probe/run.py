"""The whole probe: what the machine has, how fast it is, and the cluster file that says so."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from groundplane.probe import disk
from groundplane.probe.machine import Machine, detect_machine
from groundplane.probe.worker import Task
from groundplane.probe.workers import Phase, run_phase
from groundplane.spec.cluster import (
    AttentionPoint,
    BandwidthPoint,
    ChipSpec,
    ClusterSpec,
    CollectivePoint,
    DiskSpec,
    FabricSpec,
    MatmulPoint,
    MeasuredChip,
    OperatorPoint,
    OverheadPoint,
    ServerSpec,
)
from groundplane.spec.errors import InputError

MAX_BUSY_PROCESSES: Final = 16
"""At most so many processes measure at once: memory bandwidth is shared out long before."""

MEMORY_PER_PROCESS_BYTES: Final = 3 << 29
Progress = Callable[[str, str], None]
"""Called with the phase and what was just measured in it."""


class ProbeResult(msgspec.Struct, frozen=True):
    """What was found: the machine, the cluster file's content, and how busy the machine was meanwhile."""

    machine: Machine
    cluster: ClusterSpec
    stolen_share: float


def probe_machine(folder: Path, *, quick: bool, progress: Progress) -> ProbeResult:
    """Measures this machine; the disk under `folder` stands for its storage.

    Args:
        folder: where temporary files go.
        quick: fewer shapes and shorter timings.
        progress: told what happens.

    Raises:
        InputError: no room on disk or in memory, or a machine too busy to be measured.
    """
    progress("devices", "processors, memory, accelerators")
    machine = detect_machine()
    progress("disk", "write, read, fsync")
    drive = disk.measure_disk(folder, (64 if quick else 256) << 20)
    library = "torch" if importlib.util.find_spec("torch") is not None else "numpy"
    budget_s = 0.012 if quick else 0.02
    busy = num_busy_processes(machine)
    phases: dict[str, Phase] = {}
    alone = [_task(library, machine.cores[0], budget_s, quick=True)]
    phases["alone"] = run_phase(alone, lambda kind: progress("one core alone", kind))
    if busy > 1:
        tasks = [_task(library, core, budget_s, quick=quick) for core in _spread(machine, busy)]
        phases["busy"] = run_phase(tasks, lambda kind: progress(f"{busy} cores at once", kind))
    if library == "torch" and busy > 1:
        phases["gloo"] = _collectives(machine, budget_s, progress)
    points = tuple(point for phase in phases.values() for point in phase.points)
    stolen = max(phase.stolen_share for name, phase in phases.items() if name != "gloo")
    return ProbeResult(machine, describe(machine, points, drive, _software(library)), stolen)


def num_busy_processes(machine: Machine) -> int:
    """How many processes measure at once: one a core, as ranks run, as far as memory allows."""
    physical = max(1, len(machine.cores) // machine.threads_per_core)
    return max(1, min(physical, MAX_BUSY_PROCESSES, machine.memory_bytes // MEMORY_PER_PROCESS_BYTES))


def describe(
    machine: Machine, points: tuple[Any, ...], drive: DiskSpec, software: dict[str, str]
) -> ClusterSpec:
    """The machine as a cluster of one node whose chips are its cores.

    Peaks are the fastest product measured: a data sheet says nothing about one core of a shared machine.
    """

    def of(kind: type[Any]) -> tuple[Any, ...]:
        return tuple(point for point in points if isinstance(point, kind))

    matmuls: tuple[MatmulPoint, ...] = of(MatmulPoint)
    peak = {
        dtype: max(2.0 * p.m * p.n * p.k / p.time_s for p in matmuls if p.dtype == dtype)
        for dtype in sorted({point.dtype for point in matmuls})
    }
    chip = ChipSpec(
        name=core_name(machine.model),
        vendor=machine.vendor,
        kind="cpu",
        peak_flops_per_s=peak,
        memory_bytes=machine.memory_bytes // len(machine.cores),
        memory_bytes_per_s=_stream_bytes_per_s(of(BandwidthPoint)),
        l2_bytes=machine.l2_bytes,
        num_cores=1,
        launch_overhead_s=_smallest_time(of(OverheadPoint)),
        sources={"*": "measured on this machine; peak is the fastest product seen"},
        measured=MeasuredChip(
            matmuls=matmuls,
            bandwidths=of(BandwidthPoint),
            overheads=of(OverheadPoint),
            attentions=of(AttentionPoint),
            operators=of(OperatorPoint),
            software=software,
        ),
    )
    collectives: tuple[CollectivePoint, ...] = of(CollectivePoint)
    latency_s = min((point.time_s for point in collectives), default=5e-5)
    largest = max(collectives, key=lambda point: point.size_bytes, default=None)
    link = largest.size_bytes / largest.time_s if largest is not None else chip.memory_bytes_per_s / 4
    return ClusterSpec(
        name="this-machine",
        server=ServerSpec(
            name="this-machine",
            chip=chip,
            num_chips=len(machine.cores),
            scaleup_size=len(machine.cores),
            host_cores=len(machine.cores),
            host_memory_bytes=machine.memory_bytes,
            disk=drive,
            vendor=machine.vendor,
        ),
        num_nodes=1,
        fabric=FabricSpec(kind="loopback", topology="loopback", latency_s=latency_s, link_bytes_per_s=link),
        collectives=collectives,
        sources={"*": "groundplane probe"},
    )


def core_name(model: str) -> str:
    """A catalogue-style name for one core of a processor: "amd-epyc-9454-core"."""
    plain = re.sub(r"\((R|TM|tm)\)|\bCPU\b|@.*|\d+-Core|Processor", " ", model)
    words = re.findall(r"[a-z0-9.]+", plain.lower())
    return "-".join([*words, "core"])[-63:].strip("-.")


def _collectives(machine: Machine, budget_s: float, progress: Progress) -> Phase:
    with tempfile.TemporaryDirectory(prefix="groundplane-probe-") as folder:
        rendezvous = f"file://{folder}/rendezvous"
        tasks = [
            Task("gloo", core, 2 * budget_s, rank=rank, rendezvous=rendezvous)
            for rank, core in enumerate(_spread(machine, 2))
        ]
        return run_phase(tasks, lambda kind: progress("loopback between 2 ranks", kind))


def _task(library: str, core: int, budget_s: float, *, quick: bool) -> Task:
    return Task("torch" if library == "torch" else "numpy", core, budget_s, quick=quick)


def _spread(machine: Machine, count: int) -> list[int]:
    """`count` of the machine's cores, spread evenly over their numbers (and so over sockets)."""
    return [machine.cores[index * len(machine.cores) // count] for index in range(count)]


def _software(library: str) -> dict[str, str]:
    return {library: importlib.metadata.version(library)}


def _stream_bytes_per_s(points: tuple[BandwidthPoint, ...]) -> float:
    """Copy bandwidth of one process over the largest working set, with as many processes as were measured."""
    copies = [point for point in points if point.operation == "copy"]
    if not copies:
        raise InputError("no memory bandwidth was measured")
    return max(copies, key=lambda point: (point.processes, point.working_set_bytes)).bandwidth_bytes_per_s


def _smallest_time(points: tuple[OverheadPoint, ...]) -> float:
    return min((point.time_s for point in points), default=4e-6)
