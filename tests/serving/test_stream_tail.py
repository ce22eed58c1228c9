"""Streams pass byte by byte as they came; tokens, usage and the end are seen wherever the pieces are cut."""

from __future__ import annotations

import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from groundplane.platform.serving.events import StreamTail, usage_of_answer

ROLE = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
LAST = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
USAGE = {
    "choices": [],
    "usage": {"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}},
}


def event(data: object, separator: bytes = b"\n\n") -> bytes:
    return b"data: " + json.dumps(data, ensure_ascii=False).encode() + separator


def stream(texts: list[str], separator: bytes = b"\n\n", *, usage: bool = True) -> tuple[bytes, bytes]:
    """A whole stream, and the same without its usage chunk."""
    words = [{"choices": [{"index": 0, "delta": {"content": text}}]} for text in texts]
    before = b"".join(event(one, separator) for one in [ROLE, *words, LAST])
    done = b"data: [DONE]" + separator
    return before + (event(USAGE, separator) if usage else b"") + done, before + done


@given(
    texts=st.lists(st.text(min_size=1, max_size=5), max_size=8),
    cuts=st.lists(st.integers(0, 2000), max_size=12),
    crlf=st.booleans(),
    withhold=st.booleans(),
)
def test_any_cut_gives_the_same(texts: list[str], cuts: list[int], crlf: bool, withhold: bool) -> None:
    whole, without = stream(texts, b"\r\n\r\n" if crlf else b"\n\n")
    tail = StreamTail(withhold_usage=withhold)
    bounds = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    out = b"".join(tail.feed(whole[a:b]) for a, b in pairwise(bounds) if a < b)
    assert out + tail.finish() == (without if withhold else whole)
    assert tail.num_tokens == len(texts)
    assert tail.done
    assert not tail.failed
    assert tail.usage is not None
    assert (tail.usage.prompt_tokens, tail.usage.cached_tokens, tail.usage.completion_tokens) == (9, 4, 3)


@given(st.binary(max_size=300), st.integers(0, 300))
def test_anything_passes_unchanged(data: bytes, cut: int) -> None:
    tail = StreamTail(withhold_usage=False)
    assert tail.feed(data[:cut]) + tail.feed(data[cut:]) + tail.finish() == data


def test_what_counts_as_a_token() -> None:
    tail = StreamTail(withhold_usage=True)
    for delta in (
        {"role": "assistant", "content": None},
        {"content": ""},
        {"content": "a"},
        {"reasoning_content": "b"},
        {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]},
        {"tool_calls": []},
        {},
    ):
        tail.feed(event({"choices": [{"index": 0, "delta": delta}]}))
    tail.feed(event({"choices": [{"index": 0, "text": "c"}, {"index": 1, "text": ""}]}))
    tail.feed(b": a comment\n\n")
    tail.feed(b"data: no json\n\n")
    assert tail.num_tokens == 4


def test_usage_within_a_chunk_that_says_something_is_not_withheld() -> None:
    tail = StreamTail(withhold_usage=True)
    last = event(
        {"choices": [{"index": 0, "text": "x"}], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}
    )
    assert tail.feed(last) == last
    assert tail.usage is not None


def test_llama_cpp_counts_in_its_timings() -> None:
    tail = StreamTail(withhold_usage=False)
    chunk = event(LAST | {"timings": {"cache_n": 33, "prompt_n": 1, "predicted_n": 4, "prompt_ms": 1.5}})
    assert tail.feed(chunk) == chunk
    assert tail.usage is not None
    assert (tail.usage.prompt_tokens, tail.usage.cached_tokens, tail.usage.completion_tokens) == (34, 33, 4)


def test_an_error_within_the_stream() -> None:
    tail = StreamTail(withhold_usage=True)
    tail.feed(event({"error": {"message": "broken"}}))
    assert tail.failed


def test_usage_of_plain_answers() -> None:
    usage = usage_of_answer(b'{"usage": {"prompt_tokens": 5, "completion_tokens": 2}, "choices": [1]}')
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (5, 2, 0)
    assert usage_of_answer(b'{"usage": null}') is None
    assert usage_of_answer(b"[]") is None
    assert usage_of_answer(b"<html>") is None
