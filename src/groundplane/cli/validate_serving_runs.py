"""`groundplane validate serving --data FOLDER`: recorded runs of an engine against their simulation."""

from __future__ import annotations

import json
from pathlib import Path

import click


def show_runs(folder: Path, as_json: bool) -> None:
    """Errors of each run, in per cent of the measurement; negative is predicted too quick."""
    import msgspec

    from groundplane.sim.serving.measured_runs import measured_runs

    found = measured_runs(folder)
    if as_json:
        click.echo(json.dumps({"runs": msgspec.to_builtins(found)}, indent=1))
        return
    click.echo(
        f"{'run':<52}{'n':>6}{'tpot mean':>11}{'ttft mean':>11}{'e2e p50':>9}{'e2e p99':>9}{'KV blocks':>11}"
    )
    for run in found:
        errors = (run.tpot_mean_err_pct, run.ttft_mean_err_pct, run.e2e_p50_err_pct, run.e2e_p99_err_pct)
        cells = "".join(f"{value:>+{width}.1f}" for value, width in zip(errors, (11, 11, 9, 9), strict=True))
        click.echo(f"{run.run[-50:]:<52}{run.requests:>6}{cells}{run.kv_blocks:>11,}")
    click.echo("\nIn per cent of the measurement. The cache's blocks are computed from the chip's memory.")
