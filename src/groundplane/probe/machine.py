"""What this machine has: processors, memory, NUMA nodes, accelerators. Reads the system, measures nothing."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import msgspec
import psutil

TOOL_LIMIT_S: Final = 10.0
_FEATURES: Final = {
    "avx2": "avx2",
    "avx512f": "avx512",
    "avx512_vnni": "avx512-vnni",
    "avx512_bf16": "avx512-bf16",
    "amx_tile": "amx",
    "amx_bf16": "amx-bf16",
    "amx_int8": "amx-int8",
    "asimd": "neon",
    "sve": "sve",
    "bf16": "bf16",
    "i8mm": "i8mm",
}
"""Flag of /proc/cpuinfo -> the name it goes by."""


class Accelerator(msgspec.Struct, frozen=True):
    """One accelerator as its vendor's tool names it; `memory_bytes` is 0 where the tool does not say."""

    vendor: str
    name: str
    memory_bytes: int = 0


class Machine(msgspec.Struct, frozen=True):
    """One machine. `cores` are the numbers of the processors this process may use."""

    model: str
    vendor: str
    sockets: int
    cores: tuple[int, ...]
    threads_per_core: int
    features: tuple[str, ...]
    l2_bytes: int
    l3_bytes: int
    memory_bytes: int
    numa_nodes: int
    accelerators: tuple[Accelerator, ...]


def detect_machine() -> Machine:
    """Finds out what this machine has; what cannot be read is left at its smallest (1 socket, 0 bytes)."""
    info = _processor_info()
    flags = set(info.get("flags", info.get("Features", "")).split())
    nodes = list(Path("/sys/devices/system/node").glob("node[0-9]*"))
    return Machine(
        model=info.get("model name", "") or platform.processor() or platform.machine(),
        vendor={"AuthenticAMD": "AMD", "GenuineIntel": "Intel"}.get(
            info.get("vendor_id", ""), platform.machine()
        ),
        sockets=max(1, len(_values_of("physical id"))),
        cores=tuple(sorted(os.sched_getaffinity(0))),
        threads_per_core=_threads_per_core(),
        features=tuple(name for flag, name in _FEATURES.items() if flag in flags),
        l2_bytes=_cache_bytes(2),
        l3_bytes=_cache_bytes(3),
        memory_bytes=usable_memory_bytes(),
        numa_nodes=max(1, len(nodes)),
        accelerators=(*nvidia_devices(), *other_devices()),
    )


def usable_memory_bytes() -> int:
    """Physical memory, or the limit of the control group where that is smaller."""
    total = int(psutil.virtual_memory().total)
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = _read(Path(limit)).strip()
        if text.isdigit():
            total = min(total, int(text))
    return total


def nvidia_devices() -> list[Accelerator]:
    """NVIDIA devices by NVML; empty without the library or a driver."""
    try:
        import pynvml
    except ImportError:
        return []
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return [
            Accelerator(
                "NVIDIA", str(pynvml.nvmlDeviceGetName(h)), int(pynvml.nvmlDeviceGetMemoryInfo(h).total)
            )
            for h in handles
        ]
    finally:
        pynvml.nvmlShutdown()


def other_devices() -> list[Accelerator]:
    """Devices that the tools of other vendors list, where those tools are on the PATH."""
    found: list[Accelerator] = []
    found += rocm_devices(_tool_output(("rocm-smi", "--showproductname", "--showmeminfo", "vram", "--json")))
    found += xpu_devices(_tool_output(("xpu-smi", "discovery", "-j")))
    found += ascend_devices(_tool_output(("npu-smi", "info")))
    return found


def rocm_devices(text: str) -> list[Accelerator]:
    """AMD devices from `rocm-smi --json`."""
    cards = _json_object(text)
    return [
        Accelerator(
            "AMD",
            str(card.get("Card Series") or card.get("Card series") or card.get("Card Model") or "AMD GPU"),
            _whole(card.get("VRAM Total Memory (B)")),
        )
        for name, card in sorted(cards.items())
        if name.startswith("card") and isinstance(card, dict)
    ]


def xpu_devices(text: str) -> list[Accelerator]:
    """Intel devices from `xpu-smi discovery -j`."""
    devices = _json_object(text).get("device_list", [])
    return [Accelerator("Intel", str(device.get("device_name", "Intel GPU"))) for device in devices]


def ascend_devices(text: str) -> list[Accelerator]:
    """Ascend devices from the table of `npu-smi info`: rows that begin with a number and a chip name."""
    names = re.findall(r"^\|\s*\d+\s+(\d{3}\w+|Ascend\w+)\s*\|", text, flags=re.MULTILINE)
    return [Accelerator("Huawei", name if name.startswith("Ascend") else f"Ascend {name}") for name in names]


def _tool_output(command: tuple[str, ...]) -> str:
    """What a vendor's tool prints; empty when it is missing, fails or takes too long."""
    if shutil.which(command[0]) is None:
        return ""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _json_object(text: str) -> dict[str, Any]:
    try:
        data = json.loads(text) if text else {}
    except json.JSONDecodeError:
        return {}
    return data if isinstance(data, dict) else {}


def _whole(value: object) -> int:
    text = str(value)
    return int(text) if text.isdigit() else 0


def _processor_info() -> dict[str, str]:
    """Fields of the first processor in /proc/cpuinfo."""
    first = _read(Path("/proc/cpuinfo")).split("\n\n", maxsplit=1)[0]
    pairs = (line.split(":", maxsplit=1) for line in first.splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, value in pairs}


def _values_of(field: str) -> set[str]:
    return set(re.findall(rf"^{field}\s*:\s*(.+)$", _read(Path("/proc/cpuinfo")), flags=re.MULTILINE))


def _threads_per_core() -> int:
    siblings = _read(Path("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list")).strip()
    count = 0
    for part in siblings.split(",") if siblings else []:
        first, _, last = part.partition("-")
        count += int(last or first) - int(first) + 1
    return max(1, count)


def _cache_bytes(level: int) -> int:
    """Size of one cache of a level, as the first processor sees it."""
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        size = _read(index / "size").strip()
        if _read(index / "level").strip() == str(level) and size:
            scale = {"K": 2**10, "M": 2**20}.get(size[-1], 1)
            return int(size.rstrip("KM")) * scale
    return 0


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
