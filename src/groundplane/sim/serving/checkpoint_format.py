"""The number format that a model's published checkpoint has, from its `config.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from groundplane.catalog.resolve import model_entry
from groundplane.perfmodel.serving_layout import WEIGHT_BYTES
from groundplane.spec.errors import InputError
from groundplane.spec.load import read_text

_METHODS: Final = {
    "mxfp4": "mxfp4", "modelopt_fp4": "fp4", "nvfp4": "fp4", "awq": "int4_weight_only",
    "gptq": "int4_weight_only", "bitsandbytes": "int8_weight_only",
}  # fmt: skip
"""`quant_method` -> format, where the method alone says it."""


def native_weights(model: str | Path) -> str:
    """The format of the published checkpoint of a model by name or file: "bf16" where it is not quantised.

    Methods that are not known count as "bf16", which is the safe side for memory.
    """
    found = _quantisation(_config(str(model)))
    if found is None:
        return "bf16"
    method = str(found.get("quant_method", "")).lower()
    if method == "fp8":
        return "fp8_block" if found.get("weight_block_size") else "fp8"
    name = _METHODS.get(method, "bf16")
    return name if name in WEIGHT_BYTES else "bf16"


def _config(model: str) -> dict[str, Any]:
    path = Path(model)
    if path.is_dir():
        path = path / "config.json"
    try:
        if path.suffix == ".json":
            read = json.loads(read_text(path))
            return read if isinstance(read, dict) else {}
        config: dict[str, Any] = model_entry(model)["config"]
    except (InputError, json.JSONDecodeError):
        # Models that the catalogue only describes, and files that whoever reads the model will refuse.
        return {}
    return config


def _quantisation(config: dict[str, Any]) -> dict[str, Any] | None:
    found = config.get("quantization_config")
    text = config.get("text_config")
    if found is None and isinstance(text, dict):
        found = text.get("quantization_config")
    return found if isinstance(found, dict) else None
