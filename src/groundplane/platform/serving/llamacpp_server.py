"""llama.cpp's own HTTP server in a process of its own, until SIGTERM. Knows nothing of the platform.

python -m groundplane.platform.serving.llamacpp_server --model FILE --port N
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from groundplane.spec.errors import InputError


def main(arguments: list[str] | None = None) -> int:
    """Serves one GGUF file. Returns 0 after SIGTERM or SIGINT, 1 when it cannot be loaded, 2 on bad input."""
    parser = argparse.ArgumentParser(
        prog="llamacpp_server", description="Serve one GGUF file by llama.cpp's server."
    )
    parser.add_argument("--model", required=True, type=Path, help="the GGUF file")
    parser.add_argument("--name", default="", help="model name in its answers")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", required=True, type=int)
    parser.add_argument("--context", default=2048, type=int, help="tokens of context a slot")
    parser.add_argument("--slots", default=4, type=int, help="requests decoded together")
    parser.add_argument("--threads", default=0, type=int, help="threads; 0 takes llama.cpp's default")
    options = parser.parse_args(arguments)
    try:
        check_gguf(options.model)
    except InputError as error:
        print(f"llamacpp_server: {error}", file=sys.stderr)  # noqa: T201
        return 2
    # Blocked before the server makes its threads, so that they inherit the mask and only sigwait sees them.
    ending = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ending)
    try:
        server = _start(options)
    except RuntimeError as error:
        print(f"llamacpp_server: {options.model} cannot be served: {error}", file=sys.stderr)  # noqa: T201
        return 1
    signal.sigwait(ending)
    del server
    return 0


def check_gguf(path: Path) -> None:
    """Refuses what is no GGUF file, before llama.cpp says so in many lines.

    Raises:
        InputError: missing, unreadable, or without GGUF's magic.
    """
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", field="model", value=str(path)) from error
    if magic != b"GGUF":
        raise InputError("must be a GGUF file", field="model", value=str(path))


def _start(options: argparse.Namespace) -> object:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(options.model)
    if options.name:
        params.model_alias = {options.name}
    params.hostnames = [options.host]
    params.port = options.port
    # llama.cpp divides its context among the slots.
    params.n_ctx = options.context * options.slots
    params.n_parallel = options.slots
    params.kv_unified = False
    params.fit_params = False
    if options.threads > 0:
        params.cpuparams.n_threads = options.threads
        params.cpuparams_batch.n_threads = options.threads
    # Waiting threads sleep instead of spinning: their cores are shared with others.
    params.cpuparams.poll = 0
    params.cpuparams_batch.poll = 0
    params.endpoint_metrics = True
    # Slots would tell anybody on this machine what others are asking.
    params.endpoint_slots = False
    params.ui = False
    params.cors_origins = ""
    # Its prompt cache in memory defaults to 8 GiB: more than a small machine has.
    params.cache_ram_mib = 256
    return xllamacpp.Server(params)


if __name__ == "__main__":
    sys.exit(main())
