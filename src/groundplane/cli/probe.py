"""`groundplane probe`: measure this machine and write its cluster file."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from groundplane.probe.run import ProbeResult


@click.command(epilog="Example: groundplane probe --out cluster.yaml")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), default=Path("cluster.yaml"), show_default=True,
    help="Cluster file to write.",
)  # fmt: skip
@click.option("--quick", is_flag=True, help="Fewer shapes: about a third of the time.")
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON.")
def probe_command(out: Path, quick: bool, as_json: bool) -> None:
    """Measure this machine and write its cluster file.

    Times matrix products, attention, memory, disk and loopback collectives on one core alone and on all
    cores at once, finds accelerators, and writes what the planner reads. Takes less than a minute.
    """
    from groundplane.probe.run import probe_machine
    from groundplane.spec.dump import to_yaml
    from groundplane.spec.errors import InputError

    if out.suffix not in {".yaml", ".yml"}:
        raise InputError("must end in .yaml", field="--out", value=str(out))
    if not out.parent.is_dir():
        raise InputError("its folder does not exist", field="--out", value=str(out))
    line = ProgressLine(enabled=sys.stderr.isatty() or not as_json)
    start = time.monotonic()
    result = probe_machine(out.parent, quick=quick, progress=line.show)
    line.close()
    temporary = out.with_name(f".{out.name}.part")
    try:
        temporary.write_text(to_yaml(result.cluster))
        temporary.replace(out)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", field="--out", value=str(out)) from None
    summary = summarize(result)
    if as_json:
        click.echo(json.dumps(summary | {"out": str(out), "seconds": round(time.monotonic() - start, 1)}))
        return
    for name, value in describe(result):
        click.echo(f"{name:<22}{value}")
    click.echo(f"Wrote {out} after {time.monotonic() - start:.0f} s.")
    if result.stolen_share > 0.1:
        click.echo(
            f"Other work took {100 * result.stolen_share:.0f} % of the time meanwhile; "
            "the figures are those of the machine when idle, as far as that can be told."
        )


class ProgressLine:
    """One line a phase on standard error, with a count that moves where there is a terminal."""

    def __init__(self, *, enabled: bool) -> None:
        self.enabled = enabled
        self.moving = sys.stderr.isatty()
        self.phase = ""
        self.count = 0

    def show(self, phase: str, what: str) -> None:
        """Notes one thing done in a phase."""
        if not self.enabled:
            return
        if phase != self.phase:
            self.close()
            self.phase, self.count = phase, 0
            click.echo(f"measuring {phase} ...", nl=not self.moving, err=True)
        self.count += 1
        if self.moving:
            click.echo(f"\rmeasuring {phase} ... {self.count} {what}\x1b[K", nl=False, err=True)

    def close(self) -> None:
        """Ends the moving line."""
        if self.enabled and self.moving and self.phase:
            click.echo(f"\rmeasuring {self.phase} ... {self.count} done\x1b[K", err=True)
        self.phase = ""


def describe(result: ProbeResult) -> list[tuple[str, str]]:
    """What was found, for people."""
    from groundplane.spec import units

    machine, chip, server = result.machine, result.cluster.chip, result.cluster.server
    rows = [
        ("Processor", f"{machine.model}, {machine.sockets} socket(s), {len(machine.cores)} cores for us"),
        ("Features", ", ".join(machine.features) or "none of note"),
        ("Memory", f"{units.show_bytes(machine.memory_bytes)}, {machine.numa_nodes} NUMA node(s)"),
    ]
    for device in machine.accelerators:
        rows.append(("Accelerator", f"{device.vendor} {device.name} {units.show_bytes(device.memory_bytes)}"))
    rows += [
        (f"Products, {dtype}", f"{units.show_flops_per_s(rate)} a core")
        for dtype, rate in chip.peak_flops_per_s.items()
    ]
    rows.append(
        ("Memory bandwidth", f"{units.show_bytes_per_s(chip.memory_bytes_per_s)} a core, all cores busy")
    )
    rows.append(("Operator overhead", units.show_duration(chip.launch_overhead_s)))
    if server.disk is not None:
        disk = server.disk
        rows.append(
            (
                "Disk",
                f"write {units.show_bytes_per_s(disk.write_bytes_per_s)}, read "
                f"{units.show_bytes_per_s(disk.read_bytes_per_s)}, fsync {units.show_duration(disk.fsync_s)}",
            )
        )
    reductions = [point for point in result.cluster.collectives if point.operation == "all_reduce"]
    for point in reductions[-2:]:
        rows.append(
            (
                f"All-reduce {units.show_bytes(point.size_bytes)}",
                f"{units.show_duration(point.time_s)} between 2 ranks",
            )
        )
    software = chip.measured.software if chip.measured is not None else {}
    rows.append(("Measured with", ", ".join(f"{name} {version}" for name, version in software.items())))
    return rows


def summarize(result: ProbeResult) -> dict[str, Any]:
    """What was found, for programs; the points themselves are in the cluster file."""
    import msgspec

    machine, chip, disk = result.machine, result.cluster.chip, result.cluster.server.disk
    return {
        "machine": msgspec.to_builtins(machine),
        "peak_flops_per_s": chip.peak_flops_per_s,
        "memory_bytes_per_s": chip.memory_bytes_per_s,
        "launch_overhead_s": chip.launch_overhead_s,
        "disk": None if disk is None else msgspec.structs.asdict(disk),
        "collectives": [msgspec.structs.asdict(point) for point in result.cluster.collectives],
        "software": chip.measured.software if chip.measured is not None else {},
        "stolen_share": round(result.stolen_share, 3),
    }
