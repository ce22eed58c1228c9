"""What a finished run leaves: a Hugging Face folder, a GGUF file for llama.cpp, and `final.json`.

The GGUF's tokenizer is the run's own byte-level BPE under the pre-tokenizer name `gpt-2`, whose splits
llama.cpp knows; so both sides split text alike. Query and key rows are reordered, since llama.cpp rotates
neighbouring pairs and Hugging Face rotates halves.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from groundplane.platform.training.model import hugging_face_config
from groundplane.platform.training.tokens import BOS, CHAT_TEMPLATE, EOS, PAD, SPECIAL_TOKENS, TURN_END
from groundplane.spec.job import LlamaShape


def write_export(
    folder: Path, weights: dict[str, Tensor], shape: LlamaShape, positions: int, tokenizer_dir: Path
) -> None:
    """Fills an empty folder with config, weights, tokenizer and GGUF.

    Args:
        folder: exists and is empty.
        weights: full float32 tensors by Hugging Face name.
        shape: of the model.
        positions: longest sequence it was trained on.
        tokenizer_dir: holds `tokenizer.json` and `tokenizer_config.json`.
    """
    from safetensors.torch import save_file

    ids = {"bos_token_id": _id(BOS), "eos_token_id": _id(EOS), "pad_token_id": _id(PAD)}
    _write_json(folder / "config.json", hugging_face_config(shape, positions) | ids)
    _write_json(folder / "generation_config.json", ids | {"eos_token_id": [_id(EOS), _id(TURN_END)]})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(tokenizer_dir / name, folder / name)
    save_file(
        {name: tensor.contiguous() for name, tensor in weights.items()},
        folder / "model.safetensors",
        {"format": "pt"},
    )
    write_gguf(folder / "model.gguf", weights, shape, positions, tokenizer_dir)


def weights_sha256(weights: dict[str, Tensor]) -> str:
    """SHA-256 over the bytes of all tensors in order of their names."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(weights[name].contiguous().numpy().tobytes())
    return digest.hexdigest()


def write_gguf(
    path: Path,
    weights: dict[str, Tensor],
    shape: LlamaShape,
    positions: int,
    tokenizer_dir: Path,
    *,
    precision: Literal["F32", "F16"] = "F32",
) -> None:
    """Writes the model and its tokenizer as one GGUF file.

    Args:
        path: the file to write.
        weights: full float32 tensors by Hugging Face name.
        shape: of the model.
        positions: longest sequence it was trained on.
        tokenizer_dir: holds `tokenizer.json`.
        precision: of the matrices; vectors are always F32. F32 gives PyTorch's tokens, F16 can differ at
            near ties.
    """
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("groundplane")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32 if precision == "F32" else gguf.LlamaFileType.MOSTLY_F16)
    writer.add_context_length(positions)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.ffn)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_rope_dimension_count(shape.hidden // shape.heads)
    writer.add_rope_freq_base(shape.rope_theta)
    writer.add_layer_norm_rms_eps(shape.norm_epsilon)
    writer.add_vocab_size(shape.vocab)
    _add_tokenizer(writer, shape.vocab, tokenizer_dir)
    for name, tensor in weights.items():
        values = _llama_cpp_rows(name, tensor, shape)
        if precision == "F16" and values.ndim > 1:
            values = values.astype(np.float16)
        writer.add_tensor(_gguf_name(name), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer: Any, vocab: int, tokenizer_dir: Path) -> None:
    import gguf

    model = json.loads((tokenizer_dir / "tokenizer.json").read_text())["model"]
    # A small corpus yields fewer merges than asked for; the embedding's spare rows get names that no text
    # has.
    tokens = [f"<|unused-{index}|>" for index in range(vocab)]
    kinds = [gguf.TokenType.UNUSED] * vocab
    for text, index in model["vocab"].items():
        tokens[index] = text
        kinds[index] = gguf.TokenType.CONTROL if text in SPECIAL_TOKENS else gguf.TokenType.NORMAL
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(_id(BOS))
    writer.add_eos_token_id(_id(EOS))
    writer.add_eot_token_id(_id(TURN_END))
    writer.add_pad_token_id(_id(PAD))
    writer.add_add_bos_token(True)
    writer.add_chat_template(CHAT_TEMPLATE)


def _gguf_name(name: str) -> str:
    import gguf

    plain = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in plain:
        return plain[name]
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, int(name.split(".")[2]) + 1)
    found: str | None = names.get_name(name, try_suffixes=(".weight",))
    if found is None:
        raise KeyError(name)
    return found


def _llama_cpp_rows(name: str, tensor: Tensor, shape: LlamaShape) -> NDArray[Any]:
    """Rows of query and key matrices from (half, pair) to (pair, half) order within each head."""
    if name.endswith("q_proj.weight"):
        heads = shape.heads
    elif name.endswith("k_proj.weight"):
        heads = shape.kv_heads
    else:
        return tensor.to(torch.float32).contiguous().numpy()
    rows, width = tensor.shape
    swapped = tensor.reshape(heads, 2, rows // heads // 2, width).swapaxes(1, 2)
    return swapped.reshape(rows, width).to(torch.float32).contiguous().numpy()


def _id(token: str) -> int:
    return SPECIAL_TOKENS.index(token)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n")
