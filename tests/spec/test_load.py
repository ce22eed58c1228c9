"""Files to structs: every shape of error, with file and line, in YAML, TOML and JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec
import pytest
from msgspec import Struct

from groundplane.spec.errors import InputError
from groundplane.spec.load import MAX_FILE_BYTES, from_data, load
from groundplane.spec.quantity import Bytes, BytesPerSecond, Name, PositiveInt, Seconds


class Inner(Struct, frozen=True, forbid_unknown_fields=True):
    size_bytes: Bytes = msgspec.field(name="size")
    wait_s: Seconds = msgspec.field(default=1.0, name="wait")


class Outer(Struct, frozen=True, forbid_unknown_fields=True):
    name: Name
    inner: Inner
    count: PositiveInt = 1
    colour: Literal["red", "green"] = "red"
    links: dict[str, BytesPerSecond] = {}
    parts: tuple[Inner, ...] = ()
    limit_bytes: Bytes | None = msgspec.field(default=None, name="limit")
    flag: bool = False

    def __post_init__(self) -> None:
        if self.count == 13:
            raise InputError("must not be thirteen", field="count", value=self.count)


GOOD = """\
name: a
inner: {size: 2 GiB, wait: 5ms}
links:
  up: 400 Gb/s
parts:
  - {size: 1 KiB}
  - size: 10
limit: null
"""


def _refuse(tmp_path: Path, text: str, suffix: str = ".yaml") -> str:
    file = tmp_path / f"f{suffix}"
    file.write_text(text)
    with pytest.raises(InputError) as caught:
        load(file, Outer)
    return str(caught.value).replace(str(file), f"f{suffix}")


def test_yaml_with_quantities(tmp_path: Path) -> None:
    file = tmp_path / "good.yaml"
    file.write_text(GOOD)
    outer = load(file, Outer)
    assert outer.inner == Inner(2 * 2**30, 0.005)
    assert outer.links == {"up": 50e9}
    assert outer.parts == (Inner(1024), Inner(10))
    assert outer.limit_bytes is None


def test_toml_and_json_read_alike(tmp_path: Path) -> None:
    toml = tmp_path / "f.toml"
    toml.write_text('name = "a"\n[inner]\nsize = "2 GiB"\n[links]\nup = "50 GB/s"\n[[parts]]\nsize = 5\n')
    json = tmp_path / "f.json"
    json.write_text(
        '{"name": "a", "inner": {"size": "2 GiB"}, "links": {"up": "50 GB/s"}, "parts": [{"size": 5}]}'
    )
    assert load(toml, Outer) == load(json, Outer)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("wait: 5ms", "wiat: 5ms", "f.yaml:2: inner.wiat: unknown field; did you mean 'wait'?"),
        ("wait: 5ms", "zzz: 5", "f.yaml:2: inner.zzz: unknown field; known: size, wait"),
        ("name: a\n", "", "f.yaml:1: name: is required"),
        ("{size: 2 GiB, wait: 5ms}", "{wait: 5ms}", "f.yaml:2: inner.size: is required"),
        (
            "wait: 5ms",
            "wait: 5",
            "f.yaml:2: inner.wait: needs a unit: must be a duration such as '500ms', got 5",
        ),
        (
            "up: 400 Gb/s",
            "up: 400 GB",
            "f.yaml:4: links.up: must be a bandwidth such as '400 Gb/s', not a size, got '400 GB'",
        ),
        (
            "- size: 10",
            "- size: -10",
            "f.yaml:7: parts[1].size: must not be negative: must be a size such as '80 GiB', got -10",
        ),
        ("limit: null", "count: 0", "f.yaml:8: count: must be a whole number >= 1, got 0"),
        ("limit: null", "count: many", "f.yaml:8: count: must be a whole number, got 'many'"),
        ("limit: null", "count: 13", "f.yaml:8: count: must not be thirteen, got 13"),
        ("limit: null", "flag: 3", "f.yaml:8: flag: must be true or false, got 3"),
        ("limit: null", "colour: blue", "f.yaml:8: colour: must be one of green, red, got 'blue'"),
        (
            "limit: null",
            "colour: gren",
            "f.yaml:8: colour: must be one of green, red, got 'gren'; did you mean 'green'?",
        ),
        ("inner: {size: 2 GiB, wait: 5ms}", "inner: 3", "f.yaml:2: inner: must be a mapping, got 3"),
        ("name: a", "name: A B", "f.yaml:1: name: must be lower-case letters, digits"),
        ("name: a", "name: 5", "f.yaml:1: name: must be text, got 5"),
        ("limit: null", "name: b", "f.yaml:8: name: is given twice"),
        ("limit: null", "  bad indent", "f.yaml:9: is not valid YAML"),
        ("name: a", "name: [", "f.yaml:"),
        ("limit: null", "? [1, 2]\n: 3", "f.yaml:8: a key must be a plain word"),
    ],
)
def test_every_yaml_error_says_where(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    found = _refuse(tmp_path, GOOD.replace(old, new, 1))
    assert found.startswith(message)
    assert "\n" not in found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('name = "a"\n[inner]\nsizee = 3\n', "f.toml:3: inner.sizee: unknown field; did you mean 'size'?"),
        ('name = "a"\n[inner]\nsize = "3 s"\n', "f.toml:3: inner.size: must be a size"),
        (
            'name = "a"\n[inner]\nsize = 3\n[[parts]]\nsize = 1\n[[parts]]\nsize = "x"\n',
            "f.toml:7: parts[1].size:",
        ),
        ('name = "a"\nname = "b"\n', "f.toml:2: is not valid TOML"),
    ],
)
def test_toml_errors_say_where(tmp_path: Path, text: str, message: str) -> None:
    assert _refuse(tmp_path, text, ".toml").startswith(message)


def test_empty_file_names_the_first_missing_field(tmp_path: Path) -> None:
    assert _refuse(tmp_path, "") == "f.yaml: name: is required"


def test_a_list_is_no_spec(tmp_path: Path) -> None:
    assert _refuse(tmp_path, "- 1\n") == "f.yaml:1: must be a mapping"


def test_missing_file_names_the_nearest_beside_it(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text("")
    with pytest.raises(InputError) as caught:
        load(tmp_path / "clutser.yaml", Outer)
    assert caught.value.rule == "no such file"
    assert caught.value.nearest == "cluster.yaml"


def test_wrong_suffix_folder_encoding_and_size(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("name: a")
    (tmp_path / "d.yaml").mkdir()
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9")
    with (tmp_path / "big.yaml").open("wb") as big:
        big.truncate(MAX_FILE_BYTES + 1)
    for name, words in [
        ("a.txt", "must be a .yaml, .toml or .json file"),
        ("d.yaml", "cannot be read"),
        ("latin.yaml", "must be UTF-8 text"),
        ("big.yaml", "must be smaller than 16 MiB"),
    ]:
        with pytest.raises(InputError, match=words):
            load(tmp_path / name, Outer)


def test_programs_may_write_bare_numbers() -> None:
    data = {"name": "a", "inner": {"size": 5.0, "wait": 0.25}, "links": {"up": 1e9}}
    outer = from_data(data, Outer, bare=True)
    assert outer.inner == Inner(5, 0.25)
    with pytest.raises(InputError, match="needs a unit"):
        from_data(data, Outer)
