"""Uploads that processes of this node left when they died are taken up again, or dropped."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Final

from groundplane.platform.storage.errors import Absent, Damaged
from groundplane.platform.storage.manifest import (
    RETIRED,
    Manifest,
    decode,
    file_key,
    make_manifest,
    part_key,
    version_prefix,
)
from groundplane.platform.storage.sending import Collected, Sender
from groundplane.platform.storage.staging import sealed, settle, staged_part, take
from groundplane.platform.storage.tier import retried

_KEPT: Final = ("size_bytes", "part_bytes", "created_ns", "inline", "checksums")


def resume(sender: Sender, name_version: Callable[[], str]) -> list[tuple[str, Future[None]]]:
    """Takes up the uploads that processes of this node left when they died.

    Sealed ones are sent; unsealed ones were never promised to anybody, and go.

    Args:
        sender: of the store.
        name_version: gives a new id, for an upload whose parts were collected as garbage meanwhile.

    Returns:
        The name of each file that is being sent, with what tells when it is durable.
    """
    taken = []
    with suppress(FileNotFoundError, NotADirectoryError):
        for folder in sorted(sender.outgoing.iterdir()):
            lock = take(folder)
            if lock is None:
                continue
            manifest, content = sealed(folder)
            if manifest is None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)
                continue
            sending = sender.finish(_resend, sender, folder, lock, manifest, content, name_version)
            taken.append((manifest.name, sending))
    return taken


def _resend(
    sender: Sender,
    folder: Path,
    lock: int,
    manifest: Manifest,
    content: bytes,
    new_version: Callable[[], str],
) -> None:
    try:
        try:
            if not _superseded(sender, manifest):
                _send_missing(sender, folder, manifest)
                sender.publish(manifest, content)
        except Collected:
            fields = {field: getattr(manifest, field) for field in _KEPT}
            again = make_manifest(manifest.name, new_version(), **fields)
            _send_missing(sender, folder, again)
            sender.publish(again, content)
        settle(folder, manifest, sender.cache)
    finally:
        os.close(lock)


def _superseded(sender: Sender, manifest: Manifest) -> bool:
    """Whether a later write of the name has become durable already."""
    try:
        current, _ = decode(
            manifest.name, retried(lambda: sender.tier.get(file_key(manifest.name)), sender.patience)
        )
    except (Absent, Damaged):
        return False
    return current.created_ns > manifest.created_ns


def _send_missing(sender: Sender, folder: Path, manifest: Manifest) -> None:
    if manifest.inline:
        return
    sender.begin(manifest.name, manifest.version)
    prefix = version_prefix(manifest.name, manifest.version)
    there = {one.key: one.size_bytes for one in sender.tier.list(prefix.rstrip("/"))}
    if prefix + RETIRED in there:
        raise Collected(manifest.name)
    for number in range(manifest.num_parts):
        key = part_key(manifest.name, manifest.version, number)
        content = staged_part(folder, number)
        # A buffered tier may show a part whose bytes a loss of power took.
        if sender.tier.buffered or there.get(key) != memoryview(content).nbytes:
            sender.put_part(key, content)
