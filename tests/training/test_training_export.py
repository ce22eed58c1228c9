"""What a run leaves: the same weights and tokens in PyTorch, in the Hugging Face folder and in llama.cpp."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file
from training_runs import TINY_SHAPE, final

from groundplane.platform.training.export import weights_sha256, write_gguf
from groundplane.platform.training.model import Llama
from groundplane.platform.training.tokens import load_tokenizer
from groundplane.spec.huggingface import load_llm

pytestmark = pytest.mark.real
TEXTS = [
    "def f(x):\n    return x+1\n\n\n\tif  a:",
    "Ünïcode — “quotes” 中文字 🎉 don't I'll we've 12345 3.14",
    "a   b\n\n  \n c\r\n\t\t x  ",
    "<|im_start|>user\nhi<|im_end|>\n",
    " ",
]


class LlamaCpp:
    """llama.cpp's server on one GGUF file."""

    def __init__(self, path: Path) -> None:
        xllamacpp = pytest.importorskip("xllamacpp")
        parameters = xllamacpp.CommonParams()
        parameters.model.path = str(path)
        parameters.hostnames = ["127.0.0.1"]
        parameters.port = 0
        parameters.n_parallel = 1
        parameters.cpuparams.n_threads = 1
        parameters.warmup = False
        parameters.verbosity = -1
        self._server = xllamacpp.Server(parameters)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(
            self._server.listening_address + path,
            json.dumps(body).encode(),
            {"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def tokenize(self, text: str) -> list[int]:
        answer = self.post("/tokenize", {"content": text, "add_special": True, "parse_special": True})
        return list(answer["tokens"])

    def greedy(self, prompt: list[int], count: int) -> list[int]:
        body = {
            "prompt": prompt,
            "n_predict": count,
            "temperature": 0,
            "return_tokens": True,
            "ignore_eos": True,
        }
        return list(self.post("/completion", body)["tokens"])


@pytest.fixture(scope="module")
def served(undisturbed: Path) -> LlamaCpp:
    return LlamaCpp(undisturbed / "export" / "model.gguf")


def trained(job_dir: Path) -> Llama:
    model = Llama(TINY_SHAPE, 32)
    model.load_state_dict(load_file(job_dir / "export" / "model.safetensors"))
    return model


def greedy(model: Llama, prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    with torch.no_grad():
        for _ in range(count):
            tokens.append(int(model(torch.tensor([tokens]))[0, -1].argmax()))
    return tokens[len(prompt) :]


def test_final_json_says_what_was_exported(undisturbed: Path) -> None:
    said = final(undisturbed)
    assert (said["step"], said["tokens"]) == (24, 24 * 8 * 32)
    assert said["weights_sha256"] == weights_sha256(load_file(undisturbed / "export" / "model.safetensors"))
    assert all(0 < peak < 2 << 30 for peak in said["peak_memory_bytes"])
    names = {file.name for file in (undisturbed / "export").iterdir()}
    assert names == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "model.gguf",
        "tokenizer.json",
        "tokenizer_config.json",
    }


def test_llama_cpp_splits_text_alike(undisturbed: Path, served: LlamaCpp) -> None:
    tokenizer = load_tokenizer(undisturbed / "export")
    for text in TEXTS:
        assert served.tokenize(text) == tokenizer.encode(text).ids


def test_llama_cpp_continues_with_the_same_tokens(undisturbed: Path, served: LlamaCpp) -> None:
    model, tokenizer = trained(undisturbed), load_tokenizer(undisturbed / "export")
    for text in ("def return", "x += 1 # no", "“quoted” 中"):
        prompt = tokenizer.encode(text).ids
        assert served.greedy(prompt, 16) == greedy(model, prompt, 16)


def test_untied_f16_export_is_read(tmp_path: Path, undisturbed: Path) -> None:
    shape = msgspec.structs.replace(TINY_SHAPE, tied_embeddings=False)
    model = Llama(shape, 32)
    model.initialize(1)
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    write_gguf(tmp_path / "m.gguf", weights, shape, 32, undisturbed / "tokenizer", precision="F16")
    prompt = load_tokenizer(undisturbed / "export").encode("def").ids
    assert LlamaCpp(tmp_path / "m.gguf").greedy(prompt, 1) == greedy(model, prompt, 1)


def test_chat_is_answered(served: LlamaCpp) -> None:
    answer = served.post(
        "/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4}
    )
    assert answer["usage"]["completion_tokens"] <= 4
    template = served.post("/apply-template", {"messages": [{"role": "user", "content": "x"}]})["prompt"]
    assert template.removeprefix("<|bos|>") == "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n"


def test_the_planner_reads_the_exported_config(undisturbed: Path) -> None:
    spec = load_llm(undisturbed / "export" / "config.json")
    weights = load_file(undisturbed / "export" / "model.safetensors")
    assert spec.parameters().active == sum(tensor.numel() for tensor in weights.values())


def test_transformers_reads_the_export(undisturbed: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers, a test dependency")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(undisturbed / "export")
    tokenizer = transformers.AutoTokenizer.from_pretrained(undisturbed / "export")
    ids = tokenizer("def return x")["input_ids"]
    assert ids == load_tokenizer(undisturbed / "export").encode("def return x").ids
    with torch.no_grad():
        logits = theirs(input_ids=torch.tensor([ids])).logits
        torch.testing.assert_close(trained(undisturbed)(torch.tensor([ids])), logits, rtol=1e-4, atol=1e-5)
