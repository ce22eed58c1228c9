"""From a name or a file to a complete cluster, server, chip or model."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Final

import msgspec

from groundplane.catalog.store import SECTIONS, Catalog, singular
from groundplane.spec.cluster import (
    CardSpec,
    ChipSpec,
    ClusterSpec,
    FabricSpec,
    ServerSpec,
    StorageSpec,
    SwitchSpec,
)
from groundplane.spec.errors import InputError, nearest_name, unknown_name
from groundplane.spec.huggingface import llm_from_config, load_llm
from groundplane.spec.llm import LlmSpec
from groundplane.spec.load import Lines, from_data, placed, read_data

_FILE_SUFFIXES: Final = (".yaml", ".yml", ".toml", ".json")
STRUCTS: Final[dict[str, type]] = {
    "chips": ChipSpec,
    "servers": ServerSpec,
    "fabrics": FabricSpec,
    "storages": StorageSpec,
    "cards": CardSpec,
    "switches": SwitchSpec,
}
"""What an entry of each section becomes."""

_COUNTED: Final = re.compile(r"^(?P<name>.+?)(?P<sign>[x-])(?P<count>[1-9]\d{0,6})$")


def resolve_cluster(name_or_path: str | Path, *, catalog: Catalog | None = None) -> ClusterSpec:
    """A cluster from a file or from a preset name.

    Preset names are `CHIPxN` (N chips in the servers that chip usually comes in: "h100x1024"), `SERVERxN` or
    `SERVER-N` (N servers: "dgx-h100x16", "dgx-h100-16").

    Raises:
        InputError: no such file or name (with the nearest), a count that does not fill whole servers, or
            anything wrong in the file.
    """
    known = catalog or Catalog.shipped()
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or text.lower().endswith(_FILE_SUFFIXES) or "/" in text:
        return load_cluster(name_or_path, catalog=known)
    return _preset(text, known)


def load_cluster(path: str | Path, *, catalog: Catalog | None = None) -> ClusterSpec:
    """A cluster file, in which chip, server, fabric and storage may be names of the catalogue.

    Each may also be a mapping with `base: NAME` and what differs. `catalog: FILE` (or a list, relative
    to this file) and sections such as `chips` and `servers` add entries of the user's own.

    Raises:
        InputError: with file, line and field.
    """
    data, lines = read_data(path)
    file = str(path)
    if not isinstance(data, Mapping):
        raise InputError("must be a mapping", file=file)
    _check_top(data, file, lines)
    known = _own_entries(data, catalog or Catalog.shipped(), Path(path), lines)
    kept = {key: value for key, value in data.items() if key not in SECTIONS and key != "catalog"}
    try:
        complete = _expand_cluster(kept, known)
    except InputError as error:
        raise placed(error, file, lines) from None
    return from_data(complete, ClusterSpec, file=file, lines=lines)


def resolve_entry(section: str, name: str, *, catalog: Catalog | None = None) -> Any:
    """An entry of any section as its struct, by name or alias.

    Raises:
        InputError: unknown section or name (with the nearest), or an entry that is wrong.
    """
    known = catalog or Catalog.shipped()
    if section not in SECTIONS:
        raise unknown_name("section", section, SECTIONS)
    data = known.entry(section, name)
    if section == "servers":
        data = _with_chip(data, known)
        data.pop("fabric", None)
    return from_data(data, STRUCTS[section])


def resolve_chip(name: str, *, catalog: Catalog | None = None) -> ChipSpec:
    """A chip of the catalogue; errors as `resolve_entry`."""
    chip: ChipSpec = resolve_entry("chips", name, catalog=catalog)
    return chip


def resolve_server(name: str, *, catalog: Catalog | None = None) -> ServerSpec:
    """A server of the catalogue; errors as `resolve_entry`."""
    server: ServerSpec = resolve_entry("servers", name, catalog=catalog)
    return server


def resolve_fabric(name: str, *, catalog: Catalog | None = None) -> FabricSpec:
    """A fabric of the catalogue; errors as `resolve_entry`."""
    fabric: FabricSpec = resolve_entry("fabrics", name, catalog=catalog)
    return fabric


def resolve_storage(name: str, *, catalog: Catalog | None = None) -> StorageSpec:
    """Shared storage of the catalogue; errors as `resolve_entry`."""
    storage: StorageSpec = resolve_entry("storages", name, catalog=catalog)
    return storage


def resolve_llm(name_or_path: str | Path) -> LlmSpec:
    """A model of the catalogue by name, or from a `config.json` or the folder that holds one.

    Raises:
        InputError: no such file or name (with the nearest), or anything that the config reader refuses.
    """
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or "/" in text or text.endswith(".json") or Path(text).is_dir():
        return load_llm(name_or_path)
    entry = model_entry(text)
    return llm_from_config(entry["config"], name=entry["name"], file=None)


def model_names() -> list[str]:
    """Names of the catalogue's models, sorted."""
    folder = resources.files("groundplane.catalog") / "data" / "models"
    return sorted(item.name.removesuffix(".json") for item in folder.iterdir() if item.name.endswith(".json"))


def model_entry(name: str) -> dict[str, Any]:
    """One model's published config with its source: `name`, `source`, `config`.

    Raises:
        InputError: unknown name, with the nearest.
    """
    names = {known.casefold(): known for known in model_names()}
    true_name = names.get(name.casefold())
    if true_name is None:
        raise unknown_name("model", name, names.values())
    file = resources.files("groundplane.catalog") / "data" / "models" / f"{true_name}.json"
    return {"name": true_name, **json.loads(file.read_text("utf-8"))}


def _check_top(data: Mapping[str, Any], file: str, lines: Lines) -> None:
    """Refuses a misspelt top-level field before any name is looked up: `chipz` would hide what it defines."""
    fields = [field.encode_name for field in msgspec.structs.fields(ClusterSpec)]
    for key in data:
        if key not in (*fields, "kind", "catalog", *SECTIONS):
            near = nearest_name(str(key), (*fields, "catalog", *SECTIONS))
            raise InputError("unknown field", file=file, line=lines.get(key), field=str(key), nearest=near)


def _own_entries(data: Mapping[str, Any], known: Catalog, path: Path, lines: Lines) -> Catalog:
    listed = data.get("catalog", [])
    for item in [listed] if isinstance(listed, str) else listed:
        if not isinstance(item, str):
            raise InputError(
                "must be a file name", file=str(path), line=lines.get("catalog"), field="catalog"
            )
        known = catalog_with_file(path.parent / item, known)
    return _with_checked(
        {key: value for key, value in data.items() if key in SECTIONS}, known, str(path), lines
    )


def catalog_with_file(path: str | Path, catalog: Catalog | None = None) -> Catalog:
    """A catalogue with a file of a user's own entries added, every one of them checked.

    Raises:
        InputError: with file, line and field.
    """
    data, lines = read_data(path)
    return _with_checked(data, catalog or Catalog.shipped(), str(path), lines)


def _with_checked(data: Any, known: Catalog, file: str, lines: Lines) -> Catalog:
    together = known.with_sections(data, file=file, lines=lines)
    for section, entries in data.items():
        for name in entries:
            try:
                resolve_entry(section, str(name), catalog=together)
            except InputError as error:
                field = ".".join(part for part in (section, str(name), error.field) if part)
                inner = InputError(error.rule, field=field, value=error.value, nearest=error.nearest)
                raise placed(inner, file, lines) from None
    return together


def _expand_cluster(data: dict[str, Any], known: Catalog) -> dict[str, Any]:
    """The file's data with every name replaced; a server's own fabric serves where none is given."""
    complete = dict(data)
    if "server" in complete:
        server = _expand_server(complete["server"], known)
        usual = server.pop("fabric", None) if isinstance(server, dict) else None
        complete["server"] = server
        if "fabric" not in complete and usual is not None:
            complete["fabric"] = usual
    for field, section in (("fabric", "fabrics"), ("storage", "storages")):
        if field in complete:
            complete[field] = _within(field, lambda f=field, s=section: known.expand(s, complete[f]))
    return complete


def _expand_server(value: Any, known: Catalog) -> Any:
    return _within("server", lambda: _with_chip(known.expand("servers", value), known))


def _with_chip(server: Any, known: Catalog) -> Any:
    if isinstance(server, dict) and "chip" in server:
        return {**server, "chip": _within("chip", lambda: known.expand("chips", server["chip"]))}
    return server


def _within(field: str, expand: Any) -> Any:
    try:
        return expand()
    except InputError as error:
        inner = ".".join(part for part in (field, error.field) if part)
        raise InputError(error.rule, field=inner, value=error.value, nearest=error.nearest) from None


def _preset(text: str, known: Catalog) -> ClusterSpec:
    match = _COUNTED.match(text)
    if match is not None:
        name, count = match["name"], int(match["count"])
        if known.has("servers", name):
            return _of_servers(text, name, count, known)
        if known.has("chips", name) and match["sign"] == "x":
            return _of_chips(text, name, count, known)
    for section in ("servers", "chips"):
        if known.has(section, text):
            raise InputError(
                f"names a {singular(section)}, not a cluster: say how many",
                value=text,
                nearest=f"{text}x8",
            )
    base = match["name"] if match is not None else text
    suffix = text[len(base) :] if match is not None else "x8"
    near = nearest_name(base, known.all_names("servers") + known.all_names("chips"))
    raise InputError(
        "no such file, and no preset: a preset is CHIPxN or SERVERxN, with names from `groundplane catalog`",
        value=text,
        nearest=f"{near}{suffix}" if near else None,
    )


def _of_servers(text: str, server: str, count: int, known: Catalog) -> ClusterSpec:
    data = {"kind": "cluster", "name": text.lower(), "nodes": count, "server": server}
    complete = _expand_cluster(data, known)
    if "fabric" not in complete:
        raise InputError("names no usual fabric: write a cluster file", field="server", value=server)
    cluster = from_data(complete, ClusterSpec)
    full = cluster.server
    if not full.scaleup_torus or cluster.num_chips >= full.scaleup_size:
        return cluster
    shape = slice_shape(cluster.num_chips, full.scaleup_torus)
    part = msgspec.structs.replace(full, scaleup_size=cluster.num_chips, scaleup_torus=shape)
    return msgspec.structs.replace(cluster, server=part)


def slice_shape(num_chips: int, pod: tuple[int, ...]) -> tuple[int, ...]:
    """The most cubic box of `num_chips` inside a pod, as a scheduler of such a pod would carve it.

    Of all boxes that fit, the one whose longest side is shortest (then the next longest), longest side last.

    Raises:
        InputError: no box of that many chips fits.
    """
    limits = sorted(pod)
    best: tuple[int, ...] | None = None
    for sides in _boxes(num_chips, len(limits)):
        fits = all(side <= limit for side, limit in zip(sides, limits, strict=True))
        if fits and (best is None or sides[::-1] < best[::-1]):
            best = sides
    if best is None:
        raise InputError(
            f"must form a box inside a pod of {' x '.join(map(str, pod))}", field="chips", value=num_chips
        )
    return best


def _boxes(volume: int, dimensions: int) -> list[tuple[int, ...]]:
    """All boxes of a volume, sides ascending."""
    if dimensions == 1:
        return [(volume,)]
    sides = [side for side in range(1, volume + 1) if side**dimensions <= volume and volume % side == 0]
    return [
        (side, *rest) for side in sides for rest in _boxes(volume // side, dimensions - 1) if rest[0] >= side
    ]


def _of_chips(text: str, chip: str, count: int, known: Catalog) -> ClusterSpec:
    server = known.default_server(chip)
    if server is None:
        raise InputError(
            "has no usual server: write a cluster file, or name a server", field="chip", value=chip
        )
    spec = resolve_server(server, catalog=known)
    per_server = spec.num_chips
    if count > per_server and count % per_server:
        low = count // per_server * per_server
        raise InputError(
            f"must fill whole servers of {per_server} chips ({server})", value=text, nearest=f"{chip}x{low}"
        )
    cluster = _of_servers(text, server, max(1, count // per_server), known)
    if count >= per_server:
        return cluster
    part = msgspec.structs.replace(
        cluster.server, num_chips=count, scaleup_size=count if spec.scaleup_size > 1 else 1
    )
    return msgspec.structs.replace(cluster, server=part)
