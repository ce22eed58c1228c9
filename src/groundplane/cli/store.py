"""`groundplane store`: files in tiered storage."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from groundplane.cli.client import json_option, print_json, print_table, show_time

if TYPE_CHECKING:
    from groundplane.platform.storage.store import Entry, Store

Command = TypeVar("Command", bound=Callable[..., Any])


def store_option(command: Command) -> Command:
    """`--store FILE-OR-URL`."""
    return click.option(
        "--store",
        "where",
        envvar="GROUNDPLANE_STORE",
        required=True,
        help="Store file, or the URL of its durable tier: s3://bucket/prefix, gs://..., az://..., "
        "file:///folder (or $GROUNDPLANE_STORE).",
    )(command)


@click.group(
    name="store",
    epilog="Example: groundplane store put weights.bin runs/a/weights.bin --store s3://bucket/prefix",
)
def store_command() -> None:
    """Files in tiered storage: one namespace over a durable tier, shared and local caches."""


@store_command.command("put", epilog="Example: groundplane store put ./data corpus/v1 --store store.yaml")
@click.argument("source", type=click.Path(exists=True, path_type=Path))
@click.argument("name")
@store_option
@click.option("--through", is_flag=True, help="Send straight to the durable tier, without a local copy.")
@json_option
def put_command(source: Path, name: str, where: str, through: bool, as_json: bool) -> None:
    """Store a file, or every file of a folder, under NAME; returns when all of it is durable."""
    from groundplane.platform.storage.manifest import check_name

    files = [(source, check_name(name.rstrip("/")))]
    if source.is_dir():
        found = sorted(one for one in source.rglob("*") if one.is_file())
        files = [
            (one, check_name(f"{name.rstrip('/')}/{one.relative_to(source).as_posix()}")) for one in found
        ]
    with opened(where) as store:
        store.resume()
        for path, full_name in files:
            store.put_file(path, full_name, local=not through)
        store.flush()
    num_bytes = sum(path.stat().st_size for path, _ in files)
    plain = {"files": len(files), "bytes": num_bytes}
    told(as_json, plain, f"{counted(len(files))}, {shown(num_bytes)} stored")


@store_command.command("get", epilog="Example: groundplane store get corpus/v1 ./data --store store.yaml")
@click.argument("name")
@click.argument("target", type=click.Path(path_type=Path))
@store_option
@json_option
def get_command(name: str, target: Path, where: str, as_json: bool) -> None:
    """Copy the file NAME to TARGET, or every file below the prefix NAME into the folder TARGET."""
    num_files = num_bytes = 0
    with opened(where) as store:
        for one in names_of(store, name):
            path = target if one == name else target / one.removeprefix(name.rstrip("/") + "/")
            if path.is_dir():
                path = path / one.rpartition("/")[2]
            make_folder(path.parent)
            num_bytes += store.get_file(one, path)
            num_files += 1
    plain = {"files": num_files, "bytes": num_bytes}
    told(as_json, plain, f"{counted(num_files)}, {shown(num_bytes)} copied")


@store_command.command("cat", epilog="Example: groundplane store cat runs/a/notes.txt --store store.yaml")
@click.argument("name")
@store_option
def cat_command(name: str, where: str) -> None:
    """Write a file's bytes to standard output."""
    with opened(where) as store, store.open(name) as file:
        while piece := file.next_piece():
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()


@store_command.command("ls", epilog="Example: groundplane store ls runs --store store.yaml --long")
@click.argument("prefix", default="")
@store_option
@click.option("--recursive", "-r", is_flag=True, help="Everything below, not only one level.")
@click.option("--long", "-l", is_flag=True, help="Sizes too: one request a file that is not a source's.")
@json_option
def ls_command(prefix: str, where: str, recursive: bool, long: bool, as_json: bool) -> None:
    """List files; one line a file. With --json one object a line, so that a long listing streams."""
    import itertools
    import json

    with opened(where) as store:
        if recursive:
            entries, folders = store.files(prefix), list[str]()
        else:
            own, folders = store.level(prefix)
            entries = iter(own)
        first = next(entries, None)
        if first is None and not folders and prefix:
            first = entry_of(store, prefix)
        for folder in folders:
            click.echo(json.dumps({"folder": folder}) if as_json else f"{folder}/")
        for entry in itertools.chain([first] if first else [], entries):
            size = size_of(store, entry) if long else entry.size_bytes
            if as_json:
                click.echo(json.dumps({"name": entry.name, "bytes": size, "modified_ns": entry.modified_ns}))
            elif long:
                click.echo(f"{shown(size or 0):>10}  {show_time(entry.modified_ns)}  {entry.name}")
            else:
                click.echo(entry.name)


@store_command.command("rm", epilog="Example: groundplane store rm runs/a/notes.txt --store store.yaml")
@click.argument("name")
@store_option
@json_option
def rm_command(name: str, where: str, as_json: bool) -> None:
    """Take a file out of the namespace; `store gc` frees its space later."""
    with opened(where) as store:
        store.remove(name)
    told(as_json, {"removed": name}, f"{name} removed")


@store_command.command("pin", epilog="Example: groundplane store pin runs/a/w.bin release-7")
@click.argument("name")
@click.argument("owner")
@store_option
@json_option
def pin_command(name: str, owner: str, where: str, as_json: bool) -> None:
    """Keep the current version of a file on behalf of OWNER, whatever is removed or replaced."""
    with opened(where) as store:
        version = store.pin(name, owner)
    told(as_json, {"name": name, "version": version, "owner": owner}, f"{name} {version} pinned by {owner}")


@store_command.command("unpin", epilog="Example: groundplane store unpin runs/a/w.bin VERSION release-7")
@click.argument("name")
@click.argument("version")
@click.argument("owner")
@store_option
@json_option
def unpin_command(name: str, version: str, owner: str, where: str, as_json: bool) -> None:
    """Take a pin away."""
    with opened(where) as store:
        store.unpin(name, version, owner)
    told(as_json, {"name": name, "version": version, "owner": owner}, f"{name} {version} unpinned by {owner}")


@store_command.command("verify", epilog="Example: groundplane store verify runs --store store.yaml")
@click.argument("prefix", default="")
@store_option
@click.option("--quick", is_flag=True, help="Only presence and size of the parts, not their bytes.")
@json_option
def verify_command(prefix: str, where: str, quick: bool, as_json: bool) -> None:
    """Check files against their checksums, in the durable tier itself. Exit code 1 when any is damaged."""
    from groundplane.platform.storage.upkeep import Problem, verify

    problems, num_good = [], 0
    with opened(where) as store:
        for one in verify(store, prefix, deep=not quick):
            if isinstance(one, Problem):
                problems.append(one)
                if not as_json:
                    click.echo(f"{one.name}: {one.what}")
            else:
                num_good += 1
    plain = {"good": num_good, "damaged": [dataclasses.asdict(one) for one in problems]}
    told(as_json, plain, f"{counted(num_good)} good, {len(problems)} damaged")
    if problems:
        raise click.exceptions.Exit(1)


@store_command.command("gc", epilog="Example: groundplane store gc --dry-run --store store.yaml")
@store_option
@click.option("--grace", default="24h", show_default=True, help="How long an upload may rest.")
@click.option("--dry-run", is_flag=True, help="Only tell what would go.")
@json_option
def gc_command(where: str, grace: str, dry_run: bool, as_json: bool) -> None:
    """Free what nothing refers to. A version is marked by one run and removed by one a grace later."""
    from groundplane.platform.storage.upkeep import collect
    from groundplane.spec.units import parse_ns

    with opened(where) as store:
        done = collect(store, grace_s=parse_ns(grace, field="--grace") / 1e9, dry_run=dry_run)
    told(
        as_json,
        dataclasses.asdict(done),
        f"{done.num_versions_retired} versions marked, {done.num_versions_removed} removed, "
        f"{shown(done.num_bytes_freed)} {'would be ' if dry_run else ''}freed",
    )


@store_command.command("stat", epilog="Example: groundplane store stat runs/a/w.bin --store store.yaml")
@click.argument("name", default="")
@store_option
@json_option
def stat_command(name: str, where: str, as_json: bool) -> None:
    """What a file is; without NAME what the store and its local cache are."""
    with opened(where) as store:
        plain = file_facts(store, name) if name else store_facts(store)
    if as_json:
        print_json(plain)
    else:
        print_table(["", ""], [[key, str(value)] for key, value in plain.items()])


@store_command.command("warm", epilog="Example: groundplane store warm corpus/v1 --keep --store store.yaml")
@click.argument("prefix")
@store_option
@click.option("--keep", is_flag=True, help="No eviction touches them until --release.")
@click.option("--release", is_flag=True, help="Let go what was kept.")
@json_option
def warm_command(prefix: str, where: str, keep: bool, release: bool, as_json: bool) -> None:
    """Bring files to the local cache before they are needed."""
    from groundplane.platform.storage.upkeep import warm

    with opened(where) as store:
        if release:
            for one in names_of(store, prefix):
                store.cache.unpin(store.look_up(one).version)
            told(as_json, {"released": prefix}, f"{prefix} released")
            return
        num_files, num_bytes = warm(store, prefix, keep=keep)
        failure = store.cache.counts.last_failure
    plain = {"files": num_files, "bytes": num_bytes, "cache_failure": failure}
    told(as_json, plain, f"{counted(num_files)}, {shown(num_bytes)} warm{f' ({failure})' if failure else ''}")


def opened(where: str) -> Store:
    """The store of `--store`."""
    from groundplane.platform.storage.spec import load_store
    from groundplane.platform.storage.store import Store

    return Store(load_store(where))


def names_of(store: Store, name: str) -> list[str]:
    """The file of this name, or every file below the prefix.

    Raises:
        Absent: neither is there.
    """
    from groundplane.platform.storage.errors import Absent

    try:
        return [store.look_up(name).name]
    except Absent:
        below = [entry.name for entry in store.files(name)]
        if not below:
            raise
        return below


def entry_of(store: Store, name: str) -> Entry:
    """The listing's line of one file.

    Raises:
        Absent: there is none.
    """
    from groundplane.platform.storage.store import Entry

    file = store.look_up(name)
    return Entry(name, file.size_bytes, -1)


def size_of(store: Store, entry: Entry) -> int:
    """Size of a listed file, from its manifest where the listing does not have it."""
    return entry.size_bytes if entry.size_bytes is not None else store.look_up(entry.name).size_bytes


def file_facts(store: Store, name: str) -> dict[str, Any]:
    """What `stat NAME` tells."""
    file = store.look_up(name)
    cached = sum(store.cache.holds(file.version, number) for number in range(file.num_parts))
    return {
        "name": name,
        "bytes": file.size_bytes,
        "version": file.version,
        "parts": file.num_parts,
        "parts_cached": cached,
        "where": file.tier.url,
        "source": bool(file.key),
        "pinned_by": [] if file.key else list(store.pins(name, file.version)),
    }


def store_facts(store: Store) -> dict[str, Any]:
    """What `stat` tells of a store."""
    from groundplane.platform.storage.cache import disk_free_bytes

    return {
        "durable": store.spec.durable,
        "cache": str(store.cache.folder),
        "cache_bytes": store.cache.used_bytes(),
        "cache_limit_bytes": store.cache.limit_bytes,
        "disk_free_bytes": disk_free_bytes(store.cache.folder),
        "unsent": store.num_unsent(),
        "quotas": {prefix: store.quotas.used_bytes(prefix) for prefix in store.spec.quotas_bytes},
    }


def make_folder(folder: Path) -> None:
    """Makes the folder that a copy goes to.

    Raises:
        InputError: the disk does not let it.
    """
    from groundplane.spec.errors import InputError

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot be made: {error.strerror}", file=str(folder)) from None


def told(as_json: bool, plain: dict[str, Any], text: str) -> None:
    """The answer of a command."""
    if as_json:
        print_json(plain)
    else:
        click.echo(text)


def counted(num_files: int) -> str:
    """`1 file`, `3 files`."""
    return f"{num_files} file{'' if num_files == 1 else 's'}"


def shown(num_bytes: int) -> str:
    """A size for people."""
    from groundplane.spec.units import show_bytes

    return show_bytes(num_bytes)
