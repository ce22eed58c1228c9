"""From a name or a file to a complete cluster, server, chip or model."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Final

import msgspec

from groundplane.catalog.store import SECTIONS, Catalog
from groundplane.spec.cluster import ChipSpec, ClusterSpec, FabricSpec, ServerSpec, StorageSpec
from groundplane.spec.errors import InputError, unknown_name
from groundplane.spec.huggingface import llm_from_config, load_llm
from groundplane.spec.llm import LlmSpec
from groundplane.spec.load import Lines, from_data, read_data

_FILE_SUFFIXES: Final = (".yaml", ".yml", ".toml", ".json")
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
    to this file) and the sections `chips`, `servers`, `fabrics`, `storages` add entries of the user's own.

    Raises:
        InputError: with file, line and field.
    """
    data, lines = read_data(path)
    file = str(path)
    if not isinstance(data, Mapping):
        raise InputError("must be a mapping", file=file)
    known = _own_entries(data, catalog or Catalog.shipped(), Path(path), lines)
    kept = {key: value for key, value in data.items() if key not in SECTIONS and key != "catalog"}
    try:
        complete = _expand_cluster(kept, known)
    except InputError as error:
        raise error.at(file=file, line=lines.get(error.field or "")) from None
    return from_data(complete, ClusterSpec, file=file, lines=lines)


def resolve_chip(name: str, *, catalog: Catalog | None = None) -> ChipSpec:
    """A chip of the catalogue by name or alias.

    Raises:
        InputError: unknown name, with the nearest.
    """
    return from_data((catalog or Catalog.shipped()).entry("chips", name), ChipSpec)


def resolve_server(name: str, *, catalog: Catalog | None = None) -> ServerSpec:
    """A server of the catalogue by name or alias.

    Raises:
        InputError: unknown name, with the nearest.
    """
    known = catalog or Catalog.shipped()
    data = _expand_server(name, known)
    data.pop("fabric", None)
    return from_data(data, ServerSpec)


def resolve_fabric(name: str, *, catalog: Catalog | None = None) -> FabricSpec:
    """A fabric of the catalogue by name or alias.

    Raises:
        InputError: unknown name, with the nearest.
    """
    return from_data((catalog or Catalog.shipped()).entry("fabrics", name), FabricSpec)


def resolve_storage(name: str, *, catalog: Catalog | None = None) -> StorageSpec:
    """Shared storage of the catalogue by name or alias.

    Raises:
        InputError: unknown name, with the nearest.
    """
    return from_data((catalog or Catalog.shipped()).entry("storages", name), StorageSpec)


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


def _own_entries(data: Mapping[str, Any], known: Catalog, path: Path, lines: Lines) -> Catalog:
    listed = data.get("catalog", [])
    for item in [listed] if isinstance(listed, str) else listed:
        if not isinstance(item, str):
            raise InputError(
                "must be a file name", file=str(path), line=lines.get("catalog"), field="catalog"
            )
        known = known.with_file(path.parent / item)
    sections = {key: value for key, value in data.items() if key in SECTIONS}
    return known.with_sections(sections, file=str(path), lines=lines) if sections else known


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
    server = _within("server", lambda: known.expand("servers", value))
    if isinstance(server, dict) and "chip" in server:
        server["chip"] = _within("server.chip", lambda: known.expand("chips", server["chip"]))
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
                f"names a {section.removesuffix('s')}, not a cluster: say how many",
                value=text,
                nearest=f"{text}x8",
            )
    base = match["name"] if match is not None else text
    suffix = text[len(base) :] if match is not None else "x8"
    error = unknown_name("cluster", base, [*known.names("servers"), *known.names("chips")])
    raise InputError(
        "no such file, and no preset: a preset is CHIPxN or SERVERxN, with names from `groundplane catalog`",
        value=text,
        nearest=f"{error.nearest}{suffix}" if error.nearest else None,
    )


def _of_servers(text: str, server: str, count: int, known: Catalog) -> ClusterSpec:
    data = {"kind": "cluster", "name": text.lower(), "nodes": count, "server": server}
    cluster = from_data(_expand_cluster(data, known), ClusterSpec)
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
