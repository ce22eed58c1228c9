"""Trace files: what public traces bring along is read, everything else is refused in one line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from groundplane.sim.serving.workload import load_workload, simulated
from groundplane.sim.serving.workload_columns import columns_from_text
from groundplane.sim.serving.workload_trace import read_trace
from groundplane.spec.errors import InputError
from groundplane.spec.request_trace import TraceColumns, TraceSpec, WorkloadSpec

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.9799600,4808,10\r\n"


def written(tmp_path: Path, text: str, name: str = "trace.csv") -> str:
    path = tmp_path / name
    path.write_bytes(text.encode())
    return str(path)


def test_crlf_long_fractions_and_no_final_newline(tmp_path: Path) -> None:
    rows = load_workload(written(tmp_path, AZURE + "2023-11-16 18:17:04.0319601234567,3180,8"))
    assert rows.arrival_ns.tolist() == [0, 52_000_123]
    assert rows.prompt.tolist() == [4808, 3180]
    assert rows.output.tolist() == [10, 8]


def test_byte_order_mark_blank_lines_and_tabs(tmp_path: Path) -> None:
    text = "\ufeffarrival_ms\tisl\tosl\n\n5\t1\t2\n10.0000005\t3\t4\n"
    rows = load_workload(written(tmp_path, text))
    assert rows.arrival_ns.tolist() == [0, 5_000_000]
    assert rows.notes == []


@pytest.mark.parametrize(
    ("first", "second", "gap_ns"),
    [
        ("2024-05-10 00:00:00.5+00:00", "2024-05-10T02:00:01.5+02:00", 10**9),
        ("2024-02-28 23:59:59Z", "2024-02-29 00:00:00Z", 10**9),
        ("2024-05-10 00:00", "2024-05-10 00:01", 60 * 10**9),
        ("1777142838.338653001", "1777142838.338653004", 3),
        ("1e2", "1.01e2", 10**9),
    ],
)
def test_times_of_many_forms(tmp_path: Path, first: str, second: str, gap_ns: int) -> None:
    text = f"timestamp,prompt_tokens,output_tokens\n{first},1,1\n{second},1,1\n"
    assert load_workload(written(tmp_path, text)).arrival_ns.tolist() == [0, gap_ns]


def test_unsorted_is_sorted_and_said(tmp_path: Path) -> None:
    rows = load_workload(written(tmp_path, "t_s,time,isl,osl\n1,9,1,1\n1,7,2,2\n1,8,3,3\n"))
    assert rows.arrival_ns.tolist() == [0, 10**9, 2 * 10**9]
    assert rows.prompt.tolist() == [2, 3, 1]
    assert any("sorted" in note for note in rows.notes)


def test_failed_requests_are_left_out_and_said(tmp_path: Path) -> None:
    rows = load_workload(written(tmp_path, "time,isl,osl\n0,5,5\n1,5,0\n2,5,5\n"))
    assert len(rows) == 2
    assert any("1 requests without" in note for note in rows.notes)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("time,isl,osl\n", "header and no requests"),
        ("time,isl\n1,2\n", "no column of output tokens"),
        ("when,isl,osl\n1,2,3\n", "no column of arrival time"),
        ("time,isl,osl\n1,2\n", ":2: must have 3 cells as the header, has 2"),
        ("time,isl,osl\n1,2,3\n2,-5,3\n", ":3: isl: must not be negative, got '-5'"),
        ("time,isl,osl\n-1,2,3\n", ":2: time: must not be negative, got '-1'"),
        ("time,isl,osl\n1,2.5,3\n", ":2: isl: must be a whole number, got '2.5'"),
        ("time,isl,osl\n1,x,3\n", ":2: isl: must be a whole number, got 'x'"),
        ("time,isl,osl\n1,nan,3\n", ":2: isl: must be a whole number, got 'nan'"),
        ("time,isl,osl\ninf,2,3\n", ":2: time: must be a number of 0 or more, got 'inf'"),
        ("time,isl,osl\n1,1e12,3\n", ":2: isl: must be at most 16,777,216"),
        ("time,isl,osl\n2023-13-01 00:00:00,2,3\n", ":2: time: must be a time such as"),
        ("time,isl,osl\n2023-11-16 24:00:00,2,3\n", ":2: time: must be a time such as"),
        ("time,isl,osl\n2023-11-16 18:17:03,2,3\n5,2,3\n", ":3: time: must be a time such as"),
        ("time,isl,osl\n1,0,3\n", "no request with prompt and output tokens"),
        ("time,isl,isl,osl\n1,0,3,4\n", "column isl: is given twice"),
        ("time,isl,osl\n1,2,3\0\n", "zero byte"),
    ],
)
def test_bad_files_are_refused_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError) as error:
        load_workload(written(tmp_path, text))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


GOOD = '{"timestamp": 1, "input_length": 2, "output_length": 3}\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"timestamp": 1, "input_length": 2}\n', "no column of output tokens"),
        (GOOD + '{"timestamp": 2}\n', ":2: input_length: is missing"),
        ('{"timestamp": 1, "input_length": 2,\n', ":1: must be one JSON object a line"),
        (GOOD.replace("2", "null"), ":1: input_length: must be a whole number"),
        (GOOD.replace("2", "true"), ":1: input_length: must be a whole number"),
        (GOOD.replace("1", "[1]"), ":1: timestamp: cannot be read, got [1]"),
        (
            '{"timestamp": 1, "input_length": 600, "output_length": 3, "hash_ids": ["a"]}\n',
            ":1: hash_ids: must be a list of whole numbers",
        ),
    ],
)  # fmt: skip
def test_bad_json_lines(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError) as error:
        load_workload(written(tmp_path, text, "trace.jsonl"))
    assert said in str(error.value)


def test_hashes_of_whole_blocks_in_milliseconds(tmp_path: Path) -> None:
    text = (
        '{"timestamp": 0, "input_length": 1100, "output_length": 500, "hash_ids": [0, 1, 2]}\r\n'
        '{"timestamp": 3000, "input_length": 100, "output_length": 5, "hash_ids": []}\r\n'
        '{"timestamp": 3000, "input_length": 1024, "output_length": 5, "hash_ids": [0, 7]}\r\n'
    )
    rows = load_workload(written(tmp_path, text, "trace.jsonl"))
    assert rows.arrival_ns.tolist() == [0, 3 * 10**9, 3 * 10**9]
    assert rows.block_start.tolist() == [0, 2, 2, 4]
    assert rows.block_hash.tolist() == [0, 1, 0, 7]
    requests = simulated(rows)
    assert requests.hash_block_tokens == 512
    assert requests.session.tolist() == [-1, -1, -1]


def test_named_columns_and_the_nearest_name(tmp_path: Path) -> None:
    path = written(tmp_path, "when,in,out,who,what\n5,2,3,a,m1\n6,2,3,b,m2\n7,2,3,a,m1\n")
    columns = columns_from_text("arrival=when, prompt=in,output=out,session=who,model=what")
    rows = load_workload(path, columns=columns)
    assert rows.session.tolist() == [0, 1, 0]
    assert simulated(rows, models=["m1", "m2"]).model.tolist() == [0, 1, 0]
    with pytest.raises(InputError, match=r"unknown column.*did you mean 'when'"):
        load_workload(path, columns=columns_from_text("arrival=whem,prompt=in,output=out"))
    with pytest.raises(InputError, match=r"unknown kind of column.*did you mean 'arrival'"):
        columns_from_text("arival=when")
    with pytest.raises(InputError, match="unknown model of the deployment"):
        simulated(rows, models=["m1", "other"])


def test_missing_file_names_the_nearest(tmp_path: Path) -> None:
    path = written(tmp_path, AZURE)
    with pytest.raises(InputError, match=r"no such file; did you mean 'trace.csv'"):
        load_workload(path.replace("trace", "trase"))


def test_limit_and_lengths_alone(tmp_path: Path) -> None:
    path = written(tmp_path, "num_prefill_tokens,num_decode_tokens\n" + "5,6\n" * 100)
    rows = load_workload(path, rate_per_s=10.0, seed=1)
    assert len(rows) == 100
    assert 5.0 < rows.rate_per_s < 20.0
    assert read_trace(TraceSpec(path, rate=10.0)).arrival_ns[:3].tolist() == [0, 10**8, 2 * 10**8]
    spec = WorkloadSpec(trace=TraceSpec(path, columns=TraceColumns(), rate=10.0, limit=7))
    assert len(load_workload(spec)) == 7
    assert len(load_workload(path, rate_per_s=10.0, requests=3)) == 3


@pytest.mark.shared
def test_public_traces(shared: Path) -> None:
    azure = load_workload(shared / "traces/azure-llm-2023/AzureLLMInferenceTrace_code.csv")
    assert len(azure) == 8819
    assert azure.gap_cv == pytest.approx(13.15, abs=0.01)
    assert np.quantile(azure.prompt, [0.5, 0.99]) == pytest.approx([1469, 7436], abs=30)
    mooncake = load_workload(shared / "traces/mooncake/conversation_trace.jsonl")
    assert len(mooncake) == 12031
    assert mooncake.block_tokens == 512
    measured = load_workload(shared / "traces/llmservingsim-measured/RTXPRO6000/Llama-3.1-8B/vllm")
    assert len(measured) == 300
