"""Clusters by name: so many chips or servers of a kind, and the same cluster at other sizes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from groundplane.catalog.resolve import expand_cluster, is_file_name, load_cluster, resolve_server
from groundplane.catalog.store import Catalog, singular
from groundplane.spec.cluster import ClusterSpec
from groundplane.spec.errors import InputError, nearest_name
from groundplane.spec.load import from_data

_COUNTED: Final = re.compile(r"^(?P<name>.+?)(?P<sign>[x-])(?P<count>[1-9]\d{0,6})$")


def preset(text: str, known: Catalog) -> ClusterSpec:
    """The cluster that `CHIPxN`, `SERVERxN` or `SERVER-N` names.

    Raises:
        InputError: no such name (with the nearest), or a count that does not fill whole servers.
    """
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
                f"names a {singular(section)}, not a cluster: say how many", value=text, nearest=f"{text}x8"
            )
    base = match["name"] if match is not None else text
    suffix = text[len(base) :] if match is not None else "x8"
    near = nearest_name(base, known.all_names("servers") + known.all_names("chips"))
    raise InputError(
        "no such file, and no preset: a preset is CHIPxN or SERVERxN, with names from `groundplane catalog`",
        value=text,
        nearest=f"{near}{suffix}" if near else None,
    )


def cluster_sizes(
    name_or_path: str | Path, *, catalog: Catalog | None = None
) -> Callable[[int], ClusterSpec]:
    """The same kind of cluster with any number of chips.

    Takes a chip, a server, a preset (whose count is dropped) or a cluster file.

    Raises:
        InputError: no such name or file; the function returned raises it for chips that do not fill servers.
    """
    known = catalog or Catalog.shipped()
    text = str(name_or_path)
    if is_file_name(name_or_path):
        whole = load_cluster(name_or_path, catalog=known)
        return lambda num_chips: resized(whole, num_chips)
    match = _COUNTED.match(text)
    counted = match is not None and any(known.has(section, match["name"]) for section in ("servers", "chips"))
    base = match["name"] if match is not None and counted else text
    if known.has("servers", base):
        one = _one_server(base, known)
        return lambda num_chips: resized(one, num_chips, pod=True)
    if known.has("chips", base):
        return lambda num_chips: _of_chips(f"{base}x{num_chips}", base, num_chips, known)
    preset(text, known)
    raise InputError("must name a chip, a server or a cluster file", value=text)


def resized(cluster: ClusterSpec, num_chips: int, *, pod: bool = False) -> ClusterSpec:
    """The cluster with another number of chips: more or fewer servers, or part of one.

    Args:
        cluster: whose servers and fabric stay.
        num_chips: a multiple of a server's chips, or fewer than one has.
        pod: the server's torus is that of a whole pod, of which a slice is taken.

    Raises:
        InputError: chips that fill no whole servers.
    """
    server = cluster.server
    nodes, rest = divmod(num_chips, server.num_chips)
    if num_chips < 1 or (nodes and rest):
        raise InputError(
            f"must fill whole servers of {server.num_chips} chips ({server.name})",
            field="chips",
            value=num_chips,
        )
    name = f"{server.name}-{num_chips}-chips"
    if not nodes:
        server = msgspec.structs.replace(server, num_chips=num_chips, scaleup_torus=(), scaleup_size=1)
        if cluster.server.scaleup_size > 1:
            server = msgspec.structs.replace(server, scaleup_size=num_chips)
    elif server.scaleup_torus and num_chips < server.scaleup_size and pod:
        shape = slice_shape(num_chips, server.scaleup_torus)
        server = msgspec.structs.replace(server, scaleup_size=num_chips, scaleup_torus=shape)
    return msgspec.structs.replace(cluster, name=name, server=server, num_nodes=max(1, nodes))


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
        shape = " x ".join(map(str, pod))
        raise InputError(f"must form a box inside a pod of {shape}", field="chips", value=num_chips)
    return best


def _boxes(volume: int, dimensions: int) -> list[tuple[int, ...]]:
    """All boxes of a volume, sides ascending."""
    if dimensions == 1:
        return [(volume,)]
    sides = [side for side in range(1, volume + 1) if side**dimensions <= volume and volume % side == 0]
    return [
        (side, *rest) for side in sides for rest in _boxes(volume // side, dimensions - 1) if rest[0] >= side
    ]


def _one_server(server: str, known: Catalog) -> ClusterSpec:
    """One server with its usual fabric; its torus is that of a whole pod."""
    data = {"kind": "cluster", "name": known.true_name("servers", server), "nodes": 1, "server": server}
    complete = expand_cluster(data, known)
    if "fabric" not in complete:
        raise InputError("names no usual fabric: write a cluster file", field="server", value=server)
    return from_data(complete, ClusterSpec)


def _of_servers(text: str, server: str, count: int, known: Catalog) -> ClusterSpec:
    one = _one_server(server, known)
    whole = resized(one, count * one.server.num_chips, pod=True)
    return msgspec.structs.replace(whole, name=text.lower())


def _of_chips(text: str, chip: str, count: int, known: Catalog) -> ClusterSpec:
    server = known.default_server(chip)
    if server is None:
        raise InputError(
            "has no usual server: write a cluster file, or name a server", field="chip", value=chip
        )
    per_server = resolve_server(server, catalog=known).num_chips
    if count > per_server and count % per_server:
        low = count // per_server * per_server
        raise InputError(
            f"must fill whole servers of {per_server} chips ({server})", value=text, nearest=f"{chip}x{low}"
        )
    return msgspec.structs.replace(resized(_one_server(server, known), count, pod=True), name=text.lower())
