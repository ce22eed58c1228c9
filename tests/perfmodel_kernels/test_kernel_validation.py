"""`validate kernels` and `validate network`: what they count, leave out with a reason, and refuse."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from groundplane.perfmodel.validation.kernels import validate_kernels
from groundplane.perfmodel.validation.network import validate_network
from groundplane.perfmodel.validation.report import Excluded, Outcome, errors_of, report_of
from groundplane.spec.errors import InputError

HEADER = "source,chip,n_nodes,n_chips,fabric,collective,message_bytes,algbw_GBps,busbw_GBps,latency_us,notes"
ERRORS = {"source", "n", "median_abs_pct", "mean_abs_pct", "p90_abs_pct", "bias_pct", "coverage_pct"}


def outcome(source: str, measured: float, predicted: float, *, inferred: bool = False) -> Outcome:
    return Outcome(2, source, measured, predicted, predicted * 0.9, predicted * 1.1, inferred)


def network(tmp_path: Path, *rows: str) -> Path:
    path = tmp_path / "network.csv"
    path.write_text("\n".join([HEADER, *rows]) + "\n")
    return path


def test_errors_by_hand() -> None:
    rows = [outcome("a", 100.0, 110.0), outcome("a", 100.0, 95.0), outcome("a", 100.0, 120.0)]
    errors = errors_of("a", rows)
    assert (errors.n, errors.median_abs_pct, errors.bias_pct) == (3, 10.0, pytest.approx(25 / 3, abs=1e-3))
    assert errors.mean_abs_pct == pytest.approx(35 / 3, abs=1e-3)
    # 110 spans 99 to 121, 95 spans 85.5 to 104.5, 120 spans 108 to 132.
    assert errors.coverage_pct == pytest.approx(200 / 3, abs=1e-3)


def test_report_groups_rows() -> None:
    rows = (
        [outcome("big", 1.0, 1.1)] * 5
        + [outcome("small", 1.0, 2.0)]
        + [outcome("big", 1.0, 3.0, inferred=True)]
    )
    report = report_of(rows, [Excluded(9, "late"), Excluded(3, "early")])
    assert [(one.source, one.n) for one in report.sources] == [("big", 6)]
    assert [(one.source, one.n) for one in report.small_sources] == [("small", 1)]
    assert (report.pooled.n, report.inferred.n, [one.row for one in report.excluded]) == (6, 1, [3, 9])


def test_json_contract() -> None:
    kernels = msgspec.to_builtins(validate_kernels())
    links = msgspec.to_builtins(validate_network())
    for report in (kernels, links):
        assert set(report) == {"sources", "small_sources", "pooled", "inferred", "excluded"}
        assert all(set(one) == ERRORS for one in report["sources"] + report["small_sources"])
        assert set(report["inferred"]) == ERRORS
    assert set(kernels["pooled"]) == ERRORS
    assert set(links["pooled"]) == ERRORS | {"median_abs_pct_large", "median_abs_pct_small"}


def test_cited_points_hold() -> None:
    kernels, links = validate_kernels().pooled, validate_network().pooled
    assert kernels.n > 90
    assert kernels.median_abs_pct is not None
    assert kernels.median_abs_pct <= 6
    assert links.n > 200
    report = msgspec.to_builtins(links)
    assert report["median_abs_pct_large"] <= 10
    assert report["median_abs_pct_small"] <= 20


def test_products_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "products.csv"
    path.write_text(
        "source,chip,dtype,m,n,k,latency_us\n"
        "mine,H100-80GB-SXM,bfloat16,8192,8192,8192,1400\n"
        "mine,Abacus 3000,bfloat16,8192,8192,8192,1400\n"
        "mine,H100-80GB-SXM,fp12,8192,8192,8192,1400\n"
    )
    report = validate_kernels(path)
    assert report.pooled.n == 1
    assert report.pooled.median_abs_pct is not None
    assert report.pooled.median_abs_pct < 5
    assert [one.row for one in report.excluded] == [3, 4]
    assert "Abacus" in report.excluded[0].reason
    assert "fp12" in report.excluded[1].reason


def test_attention_is_recognised_by_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "attention.csv"
    path.write_text(
        "source,chip,dtype,batch,seq,heads,kv_heads,head_dim,latency_us\n"
        "mine,H100-80GB-SXM,bfloat16,1,8192,32,8,128,1170\n"
    )
    pooled = validate_kernels(path).pooled
    assert (pooled.n, pooled.median_abs_pct) == (1, pytest.approx(0, abs=10))


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("", "must begin with a line of column names"),
        ("source,chip,dtype,m,n,k,latency\n", "column 'latency_us' is missing"),
        ("source,chip,dtype,m,n,k,latency_us\n", "holds no rows"),
        (
            "source,chip,dtype,m,n,k,latency_us\na,h100,bf16,-5,1,1,1\n",
            "must be a number that is not negative",
        ),
        ("source,chip,dtype,m,n,k,latency_us\na,h100,bf16,0,1,1,1\n", "must be a positive number"),
        ("source,chip,dtype,m,n,k,latency_us\na,h100,bf16,two,1,1,1\n", "must be a number"),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, text: str, rule: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=rule) as error:
        validate_kernels(path)
    assert error.value.file == str(path)


def test_missing_column_names_the_nearest(tmp_path: Path) -> None:
    path = network(tmp_path, "a,h100,1,8,NVLink4,all_reduce,1024,,,10,")
    path.write_text(path.read_text().replace("latency_us", "latency_ms"))
    with pytest.raises(InputError) as error:
        validate_network(path)
    assert error.value.nearest == "latency_ms"


def test_bandwidth_stands_in_for_time_where_it_is_all_there_is(tmp_path: Path) -> None:
    # 1 GiB all-reduce over 8 at 455 GB/s of bus bandwidth, and the same as a time.
    seconds = 2 * 7 / 8 * 2**30 / 455e9
    path = network(
        tmp_path,
        "a,H100-80GB-SXM,1,8,NVLink4 NVSwitch,all_reduce,1073741824,,455,,",
        f"a,H100-80GB-SXM,1,8,NVLink4 NVSwitch,all_reduce,1073741824,,,{seconds * 1e6},",
    )
    report = validate_network(path)
    assert report.pooled.n == 2
    assert report.pooled.p90_abs_pct == pytest.approx(report.pooled.median_abs_pct, abs=1e-3)
    assert report.small_sources[0].n == 2


def test_rows_that_cannot_be_compared_are_listed_with_the_reason(tmp_path: Path) -> None:
    path = network(
        tmp_path,
        "a,H100-80GB-SXM,1,8,NVLink4,all_reduce,,,300,,",
        "a,H100-80GB-SXM,,,EFA,all_reduce,1024,,,10,",
        "a,H100-80GB-SXM,1,8,NVLink4,memcpy,1024,,,10,",
        "a,Abacus,1,8,NVLink4,all_reduce,1024,,,10,",
        "a,H100-80GB-SXM,3,8,NVLink4,all_reduce,1024,,,10,",
        "a,H100-80GB-SXM,1,8,NVLink4,all_reduce,1024,0.0,0.01,,",
        "a,GB300,18,72,NVLink5 NVL72,all_reduce,17179869184,939.58,936.93,18285,",
    )
    report = validate_network(path)
    assert report.pooled.n == 0
    reasons = [one.reason for one in report.excluded]
    assert [one.row for one in report.excluded] == [2, 3, 4, 5, 6, 7, 8]
    for reason, word in zip(
        reasons,
        ("message size", "number of chips", "memcpy", "Abacus", "make no group", "neither", "contradict"),
        strict=True,
    ):
        assert word in reason


def test_what_words_tell_is_inferred(tmp_path: Path) -> None:
    path = network(
        tmp_path,
        "a,H200-141GB-SXM,,,EFA v3 3200G/node,all_reduce,17179869184,,369.86,,1.984 -> 128 ranks = 16 nodes",
        "a,A100-80GB-SXM,1,4,NVLink,all_reduce,,,160,,default message 256 MB in the profiler",
    )
    report = validate_network(path)
    assert (report.pooled.n, report.inferred.n, report.excluded) == (0, 2, [])
    assert report.inferred.median_abs_pct is not None
    assert report.inferred.median_abs_pct < 40


def test_unseen_sites_are_priced_from_their_chip_or_network(tmp_path: Path) -> None:
    path = network(
        tmp_path,
        "new,H100 SXM5,2,16,8x400G InfiniBand NDR,all_reduce,8589934592,,390,,",
        "new,MI300X,1,8,xGMI,all_reduce,8589934592,,315,,",
        "new,L40S,1,4,PCIe,all_gather,268435456,,7,,",
    )
    report = validate_network(path)
    assert (report.pooled.n, report.excluded) == (3, [])
    assert report.pooled.p90_abs_pct is not None
    assert report.pooled.p90_abs_pct < 60


@pytest.mark.shared
def test_published_tables(shared: Path) -> None:
    measured = shared / "measured"
    products = validate_kernels(measured / "kernels_gemm_measured.csv").pooled
    attention = validate_kernels(measured / "kernels_attention_measured.csv").pooled
    assert products.median_abs_pct is not None
    assert products.median_abs_pct <= 6
    assert attention.median_abs_pct is not None
    assert attention.median_abs_pct <= 8
    for name in ("network_measured.csv", "network_aiconfigurator.csv"):
        pooled = msgspec.to_builtins(validate_network(measured / name).pooled)
        assert pooled["median_abs_pct_large"] <= 10
        assert pooled["median_abs_pct_small"] <= 20
