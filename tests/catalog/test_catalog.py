"""The shipped data, the presets, and a user's own entries."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groundplane.catalog import (
    Catalog,
    catalog_with_file,
    model_names,
    resolve_chip,
    resolve_cluster,
    resolve_entry,
    resolve_llm,
    resolve_server,
)
from groundplane.catalog.presets import cluster_sizes, resized, slice_shape
from groundplane.catalog.store import SECTIONS
from groundplane.spec.errors import InputError

SHIPPED = Catalog.shipped()
ENTRIES = [(section, name) for section in SECTIONS for name in SHIPPED.names(section)]


@pytest.mark.parametrize(("section", "name"), ENTRIES)
def test_every_entry_is_complete_and_has_a_source(section: str, name: str) -> None:
    entry = resolve_entry(section, name)
    assert entry.name == name
    assert entry.sources.get("*")


def test_there_are_as_many_as_promised() -> None:
    assert len(SHIPPED.names("chips")) >= 48
    assert len(model_names()) >= 40
    assert len(SHIPPED.names("servers")) >= 50


@pytest.mark.parametrize("section", SECTIONS)
def test_no_two_entries_share_a_name_or_alias(section: str) -> None:
    names = [name.casefold() for name in SHIPPED.names(section)]
    for name in SHIPPED.names(section):
        names += [alias.casefold() for alias in SHIPPED.aliases(section, name)]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("chip", SHIPPED.names("chips"))
def test_every_chip_makes_a_cluster(chip: str) -> None:
    cluster = resolve_cluster(f"{chip}x64")
    assert cluster.num_chips == 64
    assert cluster.chip.name == chip


def test_cards_of_servers_are_in_the_catalogue() -> None:
    for name in SHIPPED.names("servers"):
        nics = resolve_server(name).nics
        assert nics is None or SHIPPED.has("cards", nics.model), name


def test_h100_by_hand() -> None:
    chip = resolve_chip("H100")
    assert chip.name == "h100-80gb-sxm"
    assert (chip.peak("bf16"), chip.memory_bytes, chip.memory_bytes_per_s) == (989e12, 80 * 2**30, 3.35e12)
    assert (chip.scaleup_bytes_per_s, chip.num_cores, chip.tdp_w) == (450e9, 132, 700)


@pytest.mark.parametrize(
    ("text", "nodes", "chips", "domain"),
    [
        ("h100x1024", 128, 1024, 8),
        ("dgx-h100-16", 16, 128, 8),
        ("dgx-h100x16", 16, 128, 8),
        ("H100x4", 1, 4, 4),
        ("gb200x144", 36, 144, 72),
        ("gb200x16", 4, 16, 16),
        ("tpu-v5px256", 64, 256, 256),
        ("l40sx16", 2, 16, 1),
        ("p4d.24xlargex2", 2, 16, 8),
    ],
)
def test_presets(text: str, nodes: int, chips: int, domain: int) -> None:
    cluster = resolve_cluster(text)
    assert (cluster.num_nodes, cluster.num_chips, cluster.scaleup_size) == (nodes, chips, domain)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dgx-h101x16", "did you mean 'dgx-h100x16'?"),
        ("h101x8", "did you mean 'h100x8'?"),
        ("h100x12", "must fill whole servers of 8 chips (dgx-h100), got 'h100x12'; did you mean 'h100x8'?"),
        ("h100", "names a chip, not a cluster: say how many, got 'h100'; did you mean 'h100x8'?"),
        ("dgx-h100", "names a server, not a cluster"),
        ("h100x0", "no such file, and no preset"),
        ("h100x-8", "no such file, and no preset"),
        ("nowhere/cluster.yaml", "no such file"),
        ("tpu-v5px116", "must form a box inside a pod"),
        ("", "no such file, and no preset"),
    ],
)
def test_presets_that_are_not(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        resolve_cluster(text)
    assert message in str(caught.value)


@settings(deadline=None)
@given(st.integers(min_value=0, max_value=10))
def test_slices_of_a_pod_hold_all_chips(power: int) -> None:
    shape = slice_shape(2**power, (16, 20, 28))
    assert math.prod(shape) == 2**power
    assert max(shape) <= 4 * min(shape)


CLUSTER = """\
kind: cluster
name: mine
chips:
  my-h100: {base: h100, memory: 94 GiB, peak: {bf16: 900 TFLOP/s}}
server: {base: dgx-h100, chip: my-h100, chips: 4, scaleup_size: 4}
nodes: 3
fabric: {base: roce-400g, latency: 3us}
storage: lustre-small
"""


def _refuse(tmp_path: Path, text: str) -> str:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    with pytest.raises(InputError) as caught:
        resolve_cluster(file)
    return str(caught.value).replace(f"{tmp_path}/", "")


def test_a_cluster_file_overrides_the_catalogue(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(CLUSTER)
    cluster = resolve_cluster(str(file))
    assert cluster.num_chips == 12
    assert cluster.chip.memory_bytes == 94 * 2**30
    assert cluster.chip.peak("bf16") == 900e12
    assert cluster.chip.peak("fp8") == resolve_chip("h100").peak("fp8")
    assert cluster.fabric.latency_s == 3e-6
    assert cluster.storage is not None


def test_a_server_brings_its_usual_fabric(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("kind: cluster\nname: a\nserver: p5\nnodes: 2\n")
    assert resolve_cluster(file).fabric.name == "efa-v2"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("chip: my-h100", "chip: my-h101", "c.yaml:5: server.chip: unknown chip"),
        ("base: h100,", "base: h10,", "c.yaml:4: chips.my-h100: unknown chip"),
        ("94 GiB", "94", "c.yaml:4: chips.my-h100.memory: must be at least 1 MiB"),
        ("94 GiB", "94 Gb/s", "c.yaml:4: chips.my-h100.memory: must be a size such as"),
        ("bf16", "bf61", "c.yaml:4: chips.my-h100.peak: unknown number format"),
        ("base: h100,", "base: my-h100,", "c.yaml:4: chips.my-h100.base: goes in a circle"),
        ("nodes: 3", "nodes: 0", "c.yaml:6: nodes: must be a whole number >= 1, got 0"),
        ("nodes: 3", "node: 3", "c.yaml:6: node: unknown field; did you mean 'nodes'?"),
        ("chips:\n", "chipz:\n", "c.yaml:3: chipz: unknown field; did you mean 'chips'?"),
        ("server: {base", "server: {bse", "c.yaml:5: server.bse: unknown field"),
        ("latency: 3us", "latency: 3", "c.yaml:7: fabric.latency: needs a unit"),
        ("lustre-small", "lustre-smal", "c.yaml:8: storage: unknown storage"),
        ("name: mine", "catalog: more.yaml\nname: mine", "more.yaml: no such file"),
        ("name: mine", "catalog: [3]\nname: mine", "c.yaml:2: catalog: must be a file name"),
        ("kind: cluster", "kind: job", "c.yaml:1: kind: must be cluster, got 'job'"),
    ],
)
def test_bad_cluster_files(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in CLUSTER
    assert _refuse(tmp_path, CLUSTER.replace(old, new, 1)).startswith(message)


def test_a_catalogue_file_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "more.yaml").write_text("chips:\n  new-chip: {base: h100, memory: 200 GiB, aliases: [nc]}\n")
    known = catalog_with_file(tmp_path / "more.yaml")
    assert resolve_chip("NC", catalog=known).memory_bytes == 200 * 2**30
    file = tmp_path / "c.yaml"
    file.write_text(
        "kind: cluster\nname: a\ncatalog: more.yaml\nserver: {base: dgx-h100, chip: nc}\nnodes: 1\n"
    )
    assert resolve_cluster(file).chip.name == "new-chip"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("chps: {}\n", "m.yaml:1: unknown section"),
        ("chips: 3\n", "m.yaml: chips: must map names to entries"),
        ("chips:\n  a: 3\n", "m.yaml:2: chips.a: must be a mapping"),
        ("- a\n", "m.yaml: must hold sections"),
        ("chips:\n  a: {base: h100, memory: x}\n", "m.yaml:2: chips.a.memory: must be a size"),
    ],
)
def test_bad_catalogue_files(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "m.yaml"
    file.write_text(text)
    with pytest.raises(InputError) as caught:
        catalog_with_file(file)
    assert str(caught.value).replace(f"{tmp_path}/", "").startswith(message)


def test_models_by_name_file_and_nearest(tmp_path: Path) -> None:
    assert resolve_llm("Llama-3.1-8B").parameters().total == 8_030_261_248
    with pytest.raises(InputError) as caught:
        resolve_llm("llama-3.1-8")
    assert caught.value.nearest == "llama-3.1-8b"
    with pytest.raises(InputError, match="no such file"):
        resolve_llm(tmp_path / "config.json")


PUBLISHED = {
    "gpt2": 124_439_808,
    "llama-2-7b": 6_738_415_616,
    "llama-3.1-405b": 405_853_388_800,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-30b-a3b": 30_532_122_624,
    "deepseek-v3": 671_026_404_352,
    "bloom-176b": 176_247_271_424,
    "falcon-40b": 41_303_293_952,
    "gemma-2-9b": 9_241_705_984,
    "phi-2": 2_779_683_840,
    "opt-125m": 125_239_296,
}
"""Parameters as the model cards and checkpoints state them."""


@pytest.mark.parametrize(("name", "parameters"), PUBLISHED.items())
def test_published_sizes(name: str, parameters: int) -> None:
    assert resolve_llm(name).parameters().total == parameters


def test_the_examples_in_the_documentation_load(tmp_path: Path) -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "cluster-files.md").read_text()
    blocks = [part.split("```")[0] for part in text.split("```yaml\n")[1:]]
    assert len(blocks) == 3
    for block in blocks:
        file = tmp_path / "example.yaml"
        file.write_text(block)
        if block.startswith("kind: cluster"):
            assert resolve_cluster(file).num_nodes == 64
        else:
            known = catalog_with_file(file)
            assert resolve_cluster("our-npux16", catalog=known).num_chips == 16


def test_a_server_without_a_usual_fabric_makes_no_preset(tmp_path: Path) -> None:
    file = tmp_path / "more.yaml"
    file.write_text("servers:\n  bare: {chip: h100, chips: 8, scaleup_size: 8}\n")
    with pytest.raises(InputError, match="names no usual fabric"):
        resolve_cluster("barex2", catalog=catalog_with_file(file))


@pytest.mark.parametrize(
    ("text", "chips", "nodes", "domain"),
    [
        ("h100", 64, 8, 8),
        ("h100x1024", 4, 1, 4),
        ("dgx-h100", 64, 8, 8),
        ("dgx-h100-16", 8, 1, 8),
        ("gb200", 36, 9, 36),
        ("tpu-v5p", 512, 128, 512),
        ("tpu-v5px64", 2, 1, 2),
        ("l40s", 2, 1, 1),
    ],
)
def test_a_cluster_at_other_sizes(text: str, chips: int, nodes: int, domain: int) -> None:
    cluster = cluster_sizes(text)(chips)
    assert (cluster.num_chips, cluster.num_nodes, cluster.scaleup_size) == (chips, nodes, domain)


def test_a_cluster_file_at_other_sizes(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(CLUSTER)
    assert cluster_sizes(file)(40).num_nodes == 10
    with pytest.raises(InputError, match="must fill whole servers of 4 chips"):
        cluster_sizes(file)(6)
    with pytest.raises(InputError, match="must fill whole servers"):
        resized(resolve_cluster(file), 0)
    with pytest.raises(InputError) as caught:
        cluster_sizes("h1000")
    assert caught.value.nearest is not None
