"""Fabrics: topograph model files, and Slurm's `topology.conf` with its tree and block plugins."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from groundplane.spec.errors import InputError, nearest_name
from groundplane.spec.load import read_data
from groundplane.spec.topology import ClusterTopology, HostTopology

MAX_HOSTS: Final = 200_000
"""More hosts than this in one range are a mistake in it."""
MAX_DEPTH: Final = 16
"""A chain of switches longer than this goes in a circle."""
_ZONE_LABEL: Final = "topology.kubernetes.io/zone"
_DOMAIN_SUFFIX: Final = "/domain"


def read_topograph(text: str, file: str) -> ClusterTopology:  # noqa: ARG001 - read again, with lines
    """A topograph model: a tree of switches, and blocks of nodes below them."""
    data, lines = read_data(_yaml_name(file))
    if not isinstance(data, Mapping) or not isinstance(data.get("blocks"), list):
        raise InputError("must list its nodes under blocks", file=file, field="blocks")
    switches = data.get("switches") or {}
    if not isinstance(switches, Mapping):
        raise InputError(
            "must map names to switches", file=file, line=lines.get("switches"), field="switches"
        )
    above, zone_of = _tree(switches, file, lines)
    hosts: dict[str, HostTopology] = {}
    for index, block in enumerate(data["blocks"]):
        field = f"blocks[{index}]"
        where: dict[str, Any] = {"file": file, "line": lines.get(field), "field": field}
        if not isinstance(block, Mapping) or not isinstance(block.get("nodes"), list):
            raise InputError("must have a list of nodes", **where)
        leaf = str(block.get("switch") or "")
        known = [*switches, *above]
        if leaf and leaf not in known:
            near = nearest_name(leaf, known)
            raise InputError("is no switch of this file", **{**where, "field": f"{field}.switch"},
                             value=leaf, nearest=near)  # fmt: skip
        chain = _chain(leaf, above, where)
        zone = next((zone_of[name] for name in chain if name in zone_of), chain[2] if len(chain) > 2 else "")
        notes = block.get("annotations") or {}
        domain = next((str(value) for key, value in notes.items() if str(key).endswith(_DOMAIN_SUFFIX)), "")
        for pattern in block["nodes"]:
            for name in expand_names(str(pattern), where):
                if name in hosts:
                    raise InputError("is in two blocks", **where, value=name)
                hosts[name] = HostTopology(
                    name, domain=domain, leaf=leaf, spine=chain[1] if len(chain) > 1 else "", zone=zone
                )
    if not hosts:
        raise InputError("has no nodes", file=file, field="blocks")
    return ClusterTopology("topograph", tuple(hosts.values()))


def read_slurm(text: str, file: str) -> ClusterTopology:
    """Slurm's `topology.conf`: lines of `SwitchName=` (tree plugin) or `BlockName=` (block plugin)."""
    above: dict[str, str] = {}
    nodes_of: dict[str, list[str]] = {}
    blocks: dict[str, list[str]] = {}
    for number, line in _logical_lines(text):
        where: dict[str, Any] = {"file": file, "line": number}
        values = _assignments(line, where)
        if "switchname" in values:
            for name in expand_names(values["switchname"], where):
                nodes_of[name] = expand_names(values.get("nodes", ""), where)
                for child in expand_names(values.get("switches", ""), where):
                    above[child] = name
        elif "blockname" in values:
            blocks[values["blockname"]] = expand_names(values.get("nodes", ""), where)
        elif not values.keys() <= {"blocksizes", "linkspeed"}:
            raise InputError("must begin with SwitchName, BlockName or BlockSizes", **where, value=line)
    for child, parent in above.items():
        if child not in nodes_of:
            near = nearest_name(child, nodes_of)
            raise InputError("is no switch of this file", file=file, field=parent, value=child, nearest=near)
    domain_of = {name: block for block, names in blocks.items() for name in names}
    hosts: dict[str, HostTopology] = {}
    for leaf, names in nodes_of.items():
        chain = _chain(leaf, above, {"file": file, "field": leaf}) if names else []
        for name in names:
            # A host on several leaves counts with the first.
            hosts.setdefault(name, HostTopology(
                name, domain=domain_of.get(name, ""), leaf=leaf,
                spine=chain[1] if len(chain) > 1 else "", zone=chain[2] if len(chain) > 2 else "",
            ))  # fmt: skip
    for name, block in domain_of.items():
        hosts.setdefault(name, HostTopology(name, domain=block))
    if not hosts:
        raise InputError("names no nodes", file=file)
    return ClusterTopology("slurm", tuple(hosts.values()))


def expand_names(pattern: str, where: Mapping[str, Any]) -> list[str]:
    """Names of a host list as Slurm writes them: `a[1-3,7],b` are a1, a2, a3, a7 and b; widths are kept.

    Args:
        where: file, line and field for errors.

    Raises:
        InputError: brackets that do not close, or a range that is none.
    """
    names: list[str] = []
    for part in _split(pattern, where):
        match = re.fullmatch(r"([^\[\]]*)\[([^\[\]]*)\]([^\[\]]*)", part)
        if match is None:
            if "[" in part or "]" in part:
                raise InputError("is no list of names", **where, value=part)
            names.append(part)
            continue
        for piece in match[2].split(","):
            names += [f"{match[1]}{number}{match[3]}" for number in _numbers(piece, part, where)]
    return names


def _numbers(piece: str, part: str, where: Mapping[str, Any]) -> list[str]:
    ends = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", piece)
    if ends is None:
        raise InputError("is no range of numbers", **where, value=part)
    first, last, width = int(ends[1]), int(ends[2] or ends[1]), len(ends[1])
    if last < first or last - first >= MAX_HOSTS:
        raise InputError("must be an ascending range, not too long", **where, value=part)
    return [f"{number:0{width}d}" for number in range(first, last + 1)]


def _split(pattern: str, where: Mapping[str, Any]) -> list[str]:
    """The parts between commas that stand outside brackets."""
    parts, depth, begin = [], 0, 0
    for index, letter in enumerate(pattern):
        depth += (letter == "[") - (letter == "]")
        if not 0 <= depth <= 1:
            raise InputError("is no list of names", **where, value=pattern)
        if letter == "," and depth == 0:
            parts.append(pattern[begin:index])
            begin = index + 1
    if depth:
        raise InputError("has a bracket that does not close", **where, value=pattern)
    return [part.strip() for part in (*parts, pattern[begin:]) if part.strip()]


def _tree(
    switches: Mapping[Any, Any], file: str, lines: Mapping[str, int]
) -> tuple[dict[str, str], dict[str, str]]:
    """The switch above each, and the zones that switches are labelled with."""
    above: dict[str, str] = {}
    zone_of: dict[str, str] = {}
    for name, entry in switches.items():
        field = f"switches.{name}"
        if entry is not None and not isinstance(entry, Mapping):
            raise InputError("must be a mapping", file=file, line=lines.get(field), field=field)
        for child in (entry or {}).get("switches") or ():
            if str(child) in above:
                rule = f"is below two switches, {above[str(child)]} and {name}"
                raise InputError(rule, file=file, line=lines.get(field), field=field, value=str(child))
            above[str(child)] = str(name)
        zone = ((entry or {}).get("labels") or {}).get(_ZONE_LABEL)
        if zone is not None:
            zone_of[str(name)] = str(zone)
    return above, zone_of


def _chain(leaf: str, above: Mapping[str, str], where: Mapping[str, Any]) -> list[str]:
    """The leaf and the switches above it, up to the root."""
    chain = []
    while leaf:
        chain.append(leaf)
        if len(chain) > MAX_DEPTH:
            raise InputError("has switches that go in a circle", **where, value=leaf)
        leaf = above.get(leaf, "")
    return chain


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """Lines without comments, those that end in a backslash joined with the next."""
    found: list[tuple[int, str]] = []
    open_line, open_number = "", 0
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.split("#", 1)[0].strip()
        open_number = open_number if open_line else number
        if line.endswith("\\"):
            open_line += line[:-1] + " "
            continue
        if (open_line + line).strip():
            found.append((open_number, (open_line + line).strip()))
        open_line = ""
    return found


def _assignments(line: str, where: Mapping[str, Any]) -> dict[str, str]:
    values: dict[str, str] = {}
    for word in line.split():
        key, equals, value = word.partition("=")
        if not equals or not value:
            raise InputError("must be NAME=VALUE", **where, value=word)
        values[key.lower()] = value
    return values


def _yaml_name(file: str) -> str | Path:
    """The reader goes by the suffix; a model without one is YAML."""
    if Path(file).suffix.lower() in (".yaml", ".yml", ".json"):
        return file
    raise InputError("a topograph model must be a .yaml or .json file", file=file)
