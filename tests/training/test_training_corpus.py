"""Text sources, their errors, and the tokenizer and tokens built from them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet
from training_runs import tiny_spec

from groundplane.platform.training import corpus as texts
from groundplane.platform.training import tokens
from groundplane.spec.errors import InputError


def joined(data: list[str], field: str = "text") -> list[str]:
    return ["".join(pieces) for pieces in texts.documents(data, field)]


def test_every_kind_of_source(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("second\r\nline")
    (tmp_path / "a.md").write_bytes(b"first \xff")
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "rows.jsonl").write_text('{"text": "one"}\n\n{"text": ""}\n{"text": "two", "id": 3}\n')
    parquet.write_table(pyarrow.table({"body": ["x", None, "y"]}), tmp_path / "t.parquet")
    assert joined([str(tmp_path / "*.txt")]) == ["second\r\nline"]
    assert joined([str(tmp_path / "a.md"), str(tmp_path / "rows.jsonl")]) == ["first \ufffd", "one", "two"]
    assert joined([str(tmp_path / "t.parquet")], "body") == ["x", "y"]
    texts.check([str(tmp_path / "rows.jsonl"), str(tmp_path / "*.txt")])


def test_long_files_come_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "MAX_PIECE_BYTES", 10)
    text = "".join(f"line {number}\n" for number in range(9))
    (tmp_path / "long.txt").write_text(text)
    pieces = next(iter(texts.documents([str(tmp_path)], "text")))
    first = next(pieces)
    assert first == "line 0\nline 1\n"
    assert first + "".join(pieces) == text


def test_python_sources_are_there_and_capped() -> None:
    files = texts.list_files("python-sources")
    names = {file.name for file in files}
    assert {"argparse.py", "topics.py"} <= names
    assert not any("site-packages" in file.parts for file in files)
    assert 4 << 20 < texts.total_bytes(["python-sources"]) <= texts.PYTHON_SOURCES_LIMIT_BYTES


@pytest.mark.parametrize(
    ("data", "field", "message"),
    [
        (["{dir}/readm.txt"], "text", "data[0]: {none}; did you mean 'readme.txt'?"),
        (["python-source"], "text", "data[0]: {none}; did you mean 'python-sources'?"),
        (["{dir}/readme.txt", "{dir}/*.rst"], "text", "data[1]: matches no file"),
        (["{dir}/empty"], "text", "data[0]: matches no file"),
        (["{dir}/blank.txt"], "text", "data[0]: holds no text"),
        (["{dir}/rows.jsonl"], "txt", "{rows}: has no text in the field 'txt'; did you mean 'text'?"),
        (["{dir}/bad.jsonl"], "text", "{dir}/bad.jsonl:1: is not valid JSON"),
        (["{dir}/t.parquet"], "bdy", "{table}: text_field: has no column 'bdy'; did you mean 'body'?"),
        (["{dir}/t.parquet"], "id", "{table}: text_field: must be a column of text"),
        (["{dir}/not.parquet"], "text", "data[0]: is not a Parquet file"),
        ([], "text", "data: must name at least one source of text"),
    ],
)  # fmt: skip
def test_what_cannot_be_trained_on_is_refused(
    data: list[str], field: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "readme.txt").write_text("text")
    (tmp_path / "empty").mkdir()
    (tmp_path / "blank.txt").write_text("")
    (tmp_path / "rows.jsonl").write_text('{"text": "one"}\n')
    (tmp_path / "bad.jsonl").write_text("{oops\n")
    (tmp_path / "not.parquet").write_text("no")
    parquet.write_table(pyarrow.table({"body": ["x"], "id": [1]}), tmp_path / "t.parquet")
    with pytest.raises(InputError) as caught:
        texts.check([source.replace("{dir}", str(tmp_path)) for source in data], field)
    expected = message.format(
        dir=tmp_path,
        rows=f"{tmp_path}/rows.jsonl:1",
        table=f"{tmp_path}/t.parquet",
        none="no such file, folder or built-in corpus",
    )
    # The value itself is left out: it holds the test's folder and may be cut.
    assert re.sub(r", got '.*?('|\.\.\.)(?=;|$)", "", str(caught.value)) == expected


def test_tokens_hold_every_document_between_its_marks(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(
        "".join(json.dumps({"text": f"row {number}"}) + "\n" for number in range(70))
    )
    job_dir = tmp_path / "job"
    job_dir.mkdir()
    info = tokens.prepare(job_dir, tiny_spec(tmp_path / "rows.jsonl"), attempt="f1")
    stream = np.fromfile(job_dir / "data" / "tokens.bin", dtype=info.dtype)
    assert (info.num_documents, info.num_tokens, info.dtype) == (70, len(stream), "uint16")
    text = tokens.load_tokenizer(job_dir / "tokenizer").decode(stream.tolist(), skip_special_tokens=False)
    assert text == "".join(f"<|bos|>row {number}<|eos|>" for number in range(70))


def test_preparing_again_or_after_a_kill_gives_the_same(corpus: Path, tmp_path: Path) -> None:
    spec = tiny_spec(corpus)
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    (second / "tokenizer.tmp.f2").mkdir()
    (second / "tokenizer.tmp.f2" / "tokenizer.json").write_text("torn")
    info = tokens.prepare(first, spec, attempt="f1")
    assert tokens.prepare(first, spec, attempt="f2") == info
    assert tokens.prepare(second, spec, attempt="f2") == info
    with pytest.raises(InputError, match="this job's folder holds the data of"):
        tokens.prepare(first, tiny_spec(corpus / "0.txt"), attempt="f3")


def test_round_trip_of_any_text(undisturbed: Path) -> None:
    tokenizer = tokens.load_tokenizer(undisturbed / "export")
    for text in ("def f(x):\n\treturn x", "Ünïcode — 中文 🎉", "  \n\n ", ""):
        ids = tokenizer.encode(text).ids
        assert ids[0] == 1
        assert tokenizer.decode(ids) == text
