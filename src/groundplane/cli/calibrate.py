"""`groundplane calibrate`: fit a software stack's profile to a user's own measurements."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

    from groundplane.perfmodel.published import Case
    from groundplane.perfmodel.validation.report import Errors

LEAST_RUNS = 3
"""Runs below which a fit would only repeat them."""


@click.command(
    epilog="Example: groundplane calibrate runs.csv --stack megatron-core --out ours.yaml, then "
    "groundplane plan train MODEL --cluster h100x64 --stack ours.yaml"
)
@click.argument("data", type=click.Path(path_type=Path))
@click.option("--stack", required=True, help="Stack whose facts hold: a name, or a profile file.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Profile to write (.yaml).")
@click.option("--json", "as_json", is_flag=True, help="Print the profile and its errors as JSON.")
def calibrate_command(data: Path, stack: str, out: Path | None, as_json: bool) -> None:
    """Fit a stack's numbers to measured training runs, and say how good the fit is.

    DATA is a CSV file with the columns of `validate training`. All its runs are taken to be of this stack.
    Errors are told before the fit, after it, and for runs that a fit without them predicts.
    """
    import dataclasses

    import msgspec
    import yaml

    from groundplane.perfmodel.profiles import FITTED, stack_profile
    from groundplane.perfmodel.published import COLUMNS, runs_of
    from groundplane.perfmodel.validation.table import read_table
    from groundplane.perfmodel.validation.training import cases_of
    from groundplane.spec.errors import InputError

    if out is not None and out.suffix not in {".yaml", ".yml"}:
        raise InputError("must end in .yaml", field="--out", value=str(out))
    start = stack_profile(stack)
    cases, excluded = cases_of(runs_of(read_table(data, COLUMNS)))
    own = [dataclasses.replace(case, stack=start.name) for case in cases]
    if len(own) < LEAST_RUNS:
        why = f"; the first was left out because: {excluded[0].reason}" if excluded else ""
        raise InputError(
            f"holds {len(own)} runs that can be priced, {LEAST_RUNS} are needed{why}", file=str(data)
        )
    fitted, errors = fit_and_judge(own, start)
    named = msgspec.structs.replace(fitted, name=f"{start.name}-{data.stem}")
    if out is not None:
        text = yaml.safe_dump(msgspec.to_builtins(named), sort_keys=False)
        try:
            out.write_text(text, encoding="utf-8")
        except OSError as error:
            raise InputError(f"cannot be written: {error.strerror}", field="--out", value=str(out)) from None
    if as_json:
        click.echo(json.dumps(as_plain(named, errors, len(excluded)), indent=1))
        return
    click.echo(f"{len(own)} runs, {len(excluded)} rows left out (groundplane validate training says why)")
    for name in FITTED:
        click.echo(f"  {name:<22}{getattr(start, name):>12.5g} -> {getattr(fitted, name):.5g}")
    from groundplane.cli.validate import show_errors

    show_errors(errors)
    if out is not None:
        click.echo(f"Wrote {out}; name it with --stack {out}.")


def fit_and_judge(cases: Sequence[Case], start: Any) -> tuple[Any, list[Errors]]:
    """The fitted profile, and errors before the fit, after it, and on runs that a fit had not seen."""
    import numpy as np

    from groundplane.perfmodel.case_prices import CasePricer
    from groundplane.perfmodel.training_fit import fit_profile, unseen_ratios
    from groundplane.perfmodel.validation.report import Outcome, errors_of

    pricer = CasePricer(cases)
    measured = np.array([case.measured_s for case in cases])
    fitted = fit_profile(pricer, cases, start)
    ratios = unseen_ratios(pricer, cases, start)
    low, high = np.quantile(ratios, [0.1, 0.9])

    def told(name: str, predicted: Any) -> Errors:
        rows = zip(cases, measured.tolist(), predicted.tolist(), strict=True)
        return errors_of(name, (Outcome(c.row, c.source, m, p, p * low, p * high) for c, m, p in rows))

    return fitted, [
        told("before", pricer.step_s({start.name: start})),
        told("fitted", pricer.step_s({start.name: fitted})),
        told("unseen", measured / ratios),
    ]


def as_plain(profile: Any, errors: list[Errors], num_excluded: int) -> dict[str, Any]:
    """The profile and its errors for programs."""
    import msgspec

    plain = {one.source: msgspec.to_builtins(one) for one in errors}
    return {"profile": msgspec.to_builtins(profile), "errors": plain, "rows_left_out": num_excluded}
