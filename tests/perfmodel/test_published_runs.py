"""Published runs: rows put together, what is stated, what is left open, what is refused and why."""

import csv
from pathlib import Path

import pytest

from groundplane.perfmodel.published import COLUMNS, Case, case_of, runs_of
from groundplane.perfmodel.sources import stack_of
from groundplane.perfmodel.validation.report import Excluded
from groundplane.perfmodel.validation.table import read_table
from groundplane.spec.errors import InputError

GPT3 = {
    "source": "Megatron-LM SC21 Table 1",
    "model": "GPT 39B",
    "n_params_b": "39.1",
    "layers": "48",
    "hidden": "8192",
    "ffn": "32768",
    "heads": "64",
    "kv_heads": "64",
    "vocab": "51200",
    "seq_len": "2048",
    "chip": "A100-80GB-SXM",
    "n_chips": "512",
    "precision": "fp16",
    "tp": "8",
    "sp": "no",
    "cp": "1",
    "pp": "2",
    "vpp": "1",
    "dp": "32",
    "recompute": "full (uniform)",
    "micro_batch": "4",
    "global_batch": "1536",
    "metric": "step_time_s",
    "value": "14.5",
}


def case(tmp_path: Path, *changes: dict[str, str]) -> Case | Excluded:
    file = tmp_path / "runs.csv"
    with file.open("w", newline="") as handle:
        writer = csv.DictWriter(handle, COLUMNS, restval="")
        writer.writeheader()
        for change in changes or ({},):
            writer.writerow(GPT3 | change)
    (run,) = runs_of(read_table(file, COLUMNS))
    return case_of(run)


def complete(tmp_path: Path, *changes: dict[str, str]) -> Case:
    found = case(tmp_path, *changes)
    assert isinstance(found, Case), found
    return found


def test_a_complete_run_is_one_layout(tmp_path: Path) -> None:
    found = complete(tmp_path)
    (layout,) = found.layouts
    assert found.complete
    assert (layout["tp"], layout["pp"], layout["dp"], layout["num_micro"]) == (8, 2, 32, 12)
    assert layout["recompute"] == 2
    assert found.model.num_layers == 48
    assert found.cluster.num_chips == 512
    assert (found.row, found.measured_s, found.stack) == (2, 14.5, "megatron-lm")


def test_a_run_counts_once_by_its_best_metric(tmp_path: Path) -> None:
    found = complete(
        tmp_path,
        {"metric": "mfu_pct", "value": "40"},
        {"metric": "tokens_per_s_per_chip", "value": "400"},
    )
    assert found.metric == "tokens_per_s_per_chip"
    assert found.measured_s == pytest.approx(1536 * 2048 / (400 * 512))


@pytest.mark.parametrize(("notes", "factor"), [("", 1.0), ("TFLOPs INCLUDE recompute FLOPs", 4 / 3)])
def test_tflops_that_count_recompute_are_not_taken_for_useful_work(
    tmp_path: Path, notes: str, factor: float
) -> None:
    found = complete(tmp_path, {"metric": "tflops_per_chip", "value": "138", "notes": notes})
    layers, hidden, seq, vocab = 48, 8192, 2048, 51200
    useful = 72 * 1536 * seq * layers * hidden**2 * (1 + seq / (6 * hidden) + vocab / (12 * layers * hidden))
    assert found.measured_s == pytest.approx(factor * useful / (138e12 * 512), rel=1e-3)


def test_what_is_open_makes_several_layouts(tmp_path: Path) -> None:
    found = complete(tmp_path, {"recompute": "", "micro_batch": ""})
    assert found.open_fields == ("micro_batch", "recompute")
    assert {layout["micro_batch"] for layout in found.layouts} == {1, 2, 4, 8, 16}
    assert len({(layout["recompute"], layout.get("recompute_share")) for layout in found.layouts}) == 10


def test_batch_follows_from_accumulation(tmp_path: Path) -> None:
    found = complete(tmp_path, {"global_batch": "", "notes": "grad accum 3"})
    assert found.global_batch == 4 * 32 * 3


def test_layers_follow_from_parameters(tmp_path: Path) -> None:
    assert complete(tmp_path, {"layers": ""}).model.num_layers == 48


def test_a_known_model_needs_no_shape(tmp_path: Path) -> None:
    open_shape = dict.fromkeys(("layers", "hidden", "ffn", "heads", "kv_heads", "vocab", "n_params_b"), "")
    found = complete(tmp_path, open_shape | {"model": "Llama3-70B 12-layer cut"})
    assert (found.model.hidden, found.model.num_layers) == (8192, 12)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"metric": "memory_gb"}, "validate memory"),
        ({"n_chips": ""}, "no number of chips"),
        ({"seq_len": ""}, "no sequence length"),
        ({"global_batch": "", "micro_batch": ""}, "no batch"),
        ({"chip": "Z900"}, "chip that the catalogue does not know"),
        ({"notes": "[QC: tp*pp*cp*dp=640 != n_chips as printed]"}, "wrong in its source"),
        ({"dp": "16"}, "not its 512 chips"),
        ({"tp": "7"}, "does not divide"),
        ({"global_batch": "64"}, "does not feed 32 replicas"),
        ({"model": "GPT 39B LoRA"}, "LoRA"),
    ],
)
def test_runs_that_cannot_be_priced_say_why(tmp_path: Path, change: dict[str, str], reason: str) -> None:
    found = case(tmp_path, change)
    assert isinstance(found, Excluded)
    assert reason in found.reason
    assert found.row == 2


def test_a_missing_column_is_one_clear_error(tmp_path: Path) -> None:
    file = tmp_path / "runs.csv"
    file.write_text("source,model\nx,y\n")
    with pytest.raises(InputError, match="column 'where' is missing"):
        read_table(file, COLUMNS)


def test_a_value_that_is_no_number_is_told_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"runs\.csv:2: value: must be a number"):
        case(tmp_path, {"value": "fast"})


@pytest.mark.parametrize(
    ("source", "sharding", "chip", "stack"),
    [
        ("MosaicML llm-foundry MPT training benchmarks", "FSDP", "A100", "llm-foundry"),
        ("somebody's cluster", "FSDP2 (8)", "H100", "torchtitan"),
        ("somebody's cluster", "", "TPU v5e", "maxtext"),
        ("somebody's cluster", "ZeRO-1", "H100", "megatron-deepspeed-zero"),
        ("somebody's cluster", "", "MI300X", "megatron-core"),
    ],
)
def test_stacks_are_known_by_source_or_else_by_what_they_do(
    source: str, sharding: str, chip: str, stack: str
) -> None:
    assert stack_of(source, sharding, chip) == stack


def test_nanotron_runs_say_whether_their_pipelines_were_repaired() -> None:
    source = "HF nanotron sweep"
    assert stack_of(source, "ZeRO-1", "H100", "job 14113488; after_pp_fix=True") == "nanotron"
    assert stack_of(source, "ZeRO-1", "H100", "job 14113488; after_pp_fix=False") == "nanotron-unfixed"
    # Job numbers decide nothing, and a run that says nothing is priced by what all runs have in common.
    assert stack_of(source, "ZeRO-1", "H100", "job 14113488") == "nanotron-either"
    assert stack_of(source, "ZeRO-1", "H100") == "nanotron-either"


def test_an_unknown_layout_is_every_one_that_divides(tmp_path: Path) -> None:
    found = complete(tmp_path, {"tp": "", "pp": "", "dp": "", "micro_batch": "4", "n_chips": "64"})
    assert "layout" in found.open_fields
    meshes = {(layout["tp"], layout["pp"], layout["dp"]) for layout in found.layouts}
    assert (8.0, 2.0, 4.0) in meshes
    assert all(tp * pp * dp == 64 and 48 % pp == 0 for tp, pp, dp in meshes)
    # What is stated stays: three pipeline stages do not divide 64 chips.
    assert {mesh[0] for mesh in meshes} == {1.0, 2.0, 4.0, 8.0}
    given = complete(tmp_path, {"tp": "8", "pp": "", "dp": "", "n_chips": "64"})
    assert {layout["tp"] for layout in given.layouts} == {8.0}


def test_unknown_expert_parallelism_is_every_divisor(tmp_path: Path) -> None:
    moe = {"model": "Qwen3-30B-A3B", "layers": "", "hidden": "", "experts": "128", "topk": "8",
           "n_chips": "16", "tp": "1", "pp": "1", "dp": "16", "ep": "", "seq_len": "4096"}  # fmt: skip
    found = complete(tmp_path, moe)
    assert "expert parallelism" in found.open_fields
    assert {layout["ep"] for layout in found.layouts} == {1.0, 2.0, 4.0, 8.0, 16.0}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model": "Nemotron_3_Nano"}, "state-space"),
        ({"model": "610 610"}, "wrong in its source"),
        ({"tp": "", "pp": "", "dp": "", "global_batch": ""}, "states no batch"),
    ],
)
def test_what_cannot_be_priced_says_why(tmp_path: Path, change: dict[str, str], reason: str) -> None:
    found = case(tmp_path, change)
    assert isinstance(found, Excluded)
    assert reason in found.reason
