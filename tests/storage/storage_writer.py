"""A process that writes files until it is killed: `storage_writer.py SPEC-JSON LOG`.

Appends one line to the log before a file is begun, when it is safe on the local disk, and when it is durable.
"""

from __future__ import annotations

import os
import random
import sys
from concurrent.futures import Future

import msgspec

from groundplane.platform.storage.spec import StoreSpec
from groundplane.platform.storage.store import Store

PART_BYTES = 64 * 1024


def content(name: str, generation: int) -> bytes:
    """What a file holds in one of its generations; between nothing and twenty parts."""
    pick = random.Random(f"{name} {generation}")
    return pick.randbytes(pick.choice([0, 10, 3 * PART_BYTES, 20 * PART_BYTES + 5]))


def main() -> None:
    spec = msgspec.json.decode(sys.argv[1], type=StoreSpec)
    log = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    first = int(sys.argv[3])
    with Store(spec) as store:
        store.resume()
        for generation in range(first, first + 1000):
            name = f"f{generation % 5}"
            os.write(log, f"begun {name} {generation}\n".encode())
            upload = store.create(name, part_bytes=PART_BYTES, local=generation % 3 != 0)
            upload.write(content(name, generation))
            sending: Future[None] = upload.close()
            os.write(log, f"safe {name} {generation}\n".encode())
            if generation % 2:
                sending.result()
                os.write(log, f"durable {name} {generation}\n".encode())


if __name__ == "__main__":
    main()
