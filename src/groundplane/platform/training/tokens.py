"""From text to a tokenizer and one file of tokens, built once a job and never half visible.

The tokenizer is byte-level BPE with GPT-2's pre-tokenizer, because llama.cpp knows that one under the name
`gpt-2` and so splits text into the same tokens. Same text, same tokens, on every machine.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from groundplane.platform.training import corpus
from groundplane.platform.training.failures import TrainingFailure
from groundplane.platform.training.files import publish_once, remove_tree, sha256_file, write_json
from groundplane.spec.errors import InputError
from groundplane.spec.job import TrainSpec

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PAD, BOS, EOS, TURN_START, TURN_END = "<|pad|>", "<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|>"
SPECIAL_TOKENS: Final = (PAD, BOS, EOS, TURN_START, TURN_END)
"""Ids 0 to 4, in this order."""
CHAT_TEMPLATE: Final = (
    "{{ bos_token }}{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TRAINING_TEXT_LIMIT_BYTES: Final = 4 << 20
"""Text that the merges are learnt from, taken evenly from all documents: enough for small vocabularies."""
_ENCODED_TOGETHER: Final = 32
_PR_SET_PDEATHSIG: Final = 1
"""From linux/prctl.h."""


class DataInfo(msgspec.Struct, frozen=True):
    """What `data/info.json` says of `data/tokens.bin`."""

    num_tokens: int
    dtype: str
    num_documents: int
    sha256: str
    tokenizer: str
    """Identity of the tokenizer: SHA-256 of `tokenizer.json`."""
    source: tuple[str, ...]
    text_field: str


def prepare(job_dir: Path, spec: TrainSpec, *, attempt: str) -> DataInfo:
    """Builds `tokenizer/` and `data/` in the job's folder where they are not there yet, and describes them.

    May be killed at any moment and called again; what is visible is complete.

    Raises:
        InputError: a row without text, or the folder was built for another corpus.
    """
    tokenizer_dir, data_dir = job_dir / "tokenizer", job_dir / "data"
    if not (tokenizer_dir.is_dir() and data_dir.is_dir()):
        # In a process of its own: what reading a corpus takes would stay with the rank while it trains.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=context, initializer=_end_with_parent) as other:
            try:
                other.submit(_build, job_dir, spec, attempt).result()
            except BrokenProcessPool:
                raise TrainingFailure("the process that builds the tokens was killed") from None
    return _checked(data_dir, spec, tokenizer_id(tokenizer_dir))


def _end_with_parent() -> None:
    """A pool's process waits for its parent for ever, also for one that was killed; the kernel ends it."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot be ended with its parent")


def _build(job_dir: Path, spec: TrainSpec, attempt: str) -> None:
    tokenizer_dir, data_dir = job_dir / "tokenizer", job_dir / "data"
    if not tokenizer_dir.is_dir():
        built = _fresh(job_dir / f"tokenizer.tmp.{attempt}")
        save_tokenizer(train_tokenizer(spec), built, spec.seq)
        publish_once(built, tokenizer_dir)
    if not data_dir.is_dir():
        built = _fresh(job_dir / f"data.tmp.{attempt}")
        _encode(built, spec, load_tokenizer(tokenizer_dir), tokenizer_id(tokenizer_dir))
        publish_once(built, data_dir)


def tokenizer_id(tokenizer_dir: Path) -> str:
    """SHA-256 of the tokenizer's file: two runs with the same id split text alike."""
    return sha256_file(tokenizer_dir / "tokenizer.json")


def load_tokenizer(tokenizer_dir: Path) -> Tokenizer:
    """The tokenizer in a job's or an export's folder."""
    from tokenizers import Tokenizer

    loaded: Tokenizer = Tokenizer.from_file(str(tokenizer_dir / "tokenizer.json"))
    return loaded


def train_tokenizer(spec: TrainSpec) -> Tokenizer:
    """Learns the merges from an even sample of the corpus."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=spec.model.vocab,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_sample(spec), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B", special_tokens=[(BOS, SPECIAL_TOKENS.index(BOS))]
    )
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path, max_positions: int) -> None:
    """Writes `tokenizer.json` and `tokenizer_config.json` in the Hugging Face layout."""
    tokenizer.save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": PAD,
        "additional_special_tokens": [TURN_START, TURN_END],
        "add_bos_token": True,
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_positions,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")


def _sample(spec: TrainSpec) -> Iterator[str]:
    """Every k-th piece, so that about `TRAINING_TEXT_LIMIT_BYTES` come from all over the corpus."""
    total = max(1, corpus.total_bytes(spec.data))
    share = min(1.0, TRAINING_TEXT_LIMIT_BYTES / total)
    taken = 0.0
    for document in corpus.documents(spec.data, spec.text_field):
        for piece in document:
            taken += share
            if taken >= 1.0 - 1e-9:
                taken -= 1.0
                yield piece


def _encode(folder: Path, spec: TrainSpec, tokenizer: Tokenizer, identity: str) -> None:
    """Writes BOS, tokens, EOS of every document after one another, in bounded memory."""
    dtype = "uint16" if spec.model.vocab <= 1 << 16 else "uint32"
    num_tokens = num_documents = 0
    with (folder / "tokens.bin").open("wb") as stream:
        for chunk, ends in _chunks(spec):
            encoded = tokenizer.encode_batch_fast(chunk, add_special_tokens=False)
            parts: list[int] = []
            for piece, (first, last) in zip(encoded, ends, strict=True):
                parts += [SPECIAL_TOKENS.index(BOS)] * first + piece.ids + [SPECIAL_TOKENS.index(EOS)] * last
                num_documents += last
            stream.write(np.asarray(parts, dtype=dtype).tobytes())
            num_tokens += len(parts)
    info = DataInfo(
        num_tokens=num_tokens,
        dtype=dtype,
        num_documents=num_documents,
        sha256=sha256_file(folder / "tokens.bin"),
        tokenizer=identity,
        source=spec.data,
        text_field=spec.text_field,
    )
    write_json(folder / "info.json", msgspec.to_builtins(info), attempt="info")


def _chunks(spec: TrainSpec) -> Iterator[tuple[list[str], list[tuple[bool, bool]]]]:
    """Pieces to encode together, each with (begins a document, ends a document)."""
    texts: list[str] = []
    ends: list[tuple[bool, bool]] = []
    for document in corpus.documents(spec.data, spec.text_field):
        first = True
        piece = next(document, None)
        while piece is not None:
            following = next(document, None)
            texts.append(piece)
            ends.append((first, following is None))
            first, piece = False, following
            if len(texts) == _ENCODED_TOGETHER:
                yield texts, ends
                texts, ends = [], []
    if texts:
        yield texts, ends


def _checked(data_dir: Path, spec: TrainSpec, identity: str) -> DataInfo:
    info = msgspec.json.decode((data_dir / "info.json").read_bytes(), type=DataInfo)
    if (info.source, info.text_field) != (spec.data, spec.text_field):
        raise InputError(
            f"this job's folder holds the data of {', '.join(info.source)}; take a new folder",
            field="data",
            value=", ".join(spec.data),
        )
    size = info.num_tokens * np.dtype(info.dtype).itemsize
    if info.tokenizer != identity or (data_dir / "tokens.bin").stat().st_size != size:
        raise InputError(
            "tokens.bin does not fit its info.json; remove the folder to build it again", file=str(data_dir)
        )
    return info


def _fresh(folder: Path) -> Path:
    remove_tree(folder)
    folder.mkdir(parents=True)
    return folder
