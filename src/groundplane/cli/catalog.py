"""`groundplane catalog`: what is known of chips, servers, fabrics and models, and where from."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

KINDS = "chips|servers|fabrics|storages|cards|switches|models"


@click.command(
    epilog="Examples: groundplane catalog chips;  groundplane catalog servers dgx-h100;  "
    "groundplane catalog models deepseek-v3 --json"
)
@click.argument("kind", metavar=KINDS)
@click.argument("name", required=False)
@click.option(
    "--catalog",
    "files",
    multiple=True,
    metavar="FILE",
    help="Add a file of entries of your own; its entries win.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, numbers in base units.")
def catalog_command(kind: str, name: str | None, files: tuple[str, ...], as_json: bool) -> None:
    """List a section of the catalogue, or show one entry with its sources.

    A cluster file may name any chip, server or fabric listed here, or give `base: NAME` and what differs.
    """
    from groundplane.catalog import tables
    from groundplane.catalog.resolve import catalog_with_file
    from groundplane.catalog.store import Catalog

    catalog = Catalog.shipped()
    for file in files:
        catalog = catalog_with_file(file, catalog)
    if name is None:
        columns, rows = tables.table(kind, catalog)
        if as_json:
            click.echo(json.dumps([tables.as_data(kind, row[0], catalog) for row in rows], indent=2))
            return
        for line in aligned([columns, *rows]):
            click.echo(line)
        return
    if as_json:
        click.echo(json.dumps(tables.as_data(kind, name, catalog), indent=2))
        return
    import yaml

    text = yaml.safe_dump(tables.detail(kind, name, catalog), sort_keys=False, width=108, allow_unicode=True)
    click.echo(text, nl=False)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of text in columns as wide as their widest cell."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
