"""One store: a namespace of files over its durable tier, its caches and its sources.

This is what everything else uses. A name is either below the prefix of a source (a plain object that others
wrote, read-only here) or a file of ours (manifest and parts in the durable tier).
"""

from __future__ import annotations

import hashlib
import os
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from groundplane.platform.storage.cache import PartCache
from groundplane.platform.storage.errors import Absent, Pinned, StorageError
from groundplane.platform.storage.manifest import (
    PART_BYTES,
    Manifest,
    check_name,
    check_prefix,
    decode,
    encode,
    file_key,
    pin_key,
)
from groundplane.platform.storage.peers import PEER_KEY, Peers, PeerServer
from groundplane.platform.storage.quota import Quotas
from groundplane.platform.storage.reader import READ_AHEAD, StoreFile, read_whole
from groundplane.platform.storage.reading import Fetcher, OpenedFile
from groundplane.platform.storage.resuming import resume
from groundplane.platform.storage.sending import Sender
from groundplane.platform.storage.tier import Patience, Tier, open_tier, retried
from groundplane.platform.storage.writing import Upload
from groundplane.spec.errors import InputError

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from groundplane.platform.storage.spec import StoreSpec


@dataclass(frozen=True)
class Entry:
    """One line of a listing. `size_bytes` is None where only the manifest knows it."""

    name: str
    size_bytes: int | None
    modified_ns: int
    etag: str = ""


class Store:
    """A store, as one process uses it. Threads may share it; close it at the end.

    It must not be used on both sides of a fork: the threads of the parent are not there in the child. Send
    the spec to the other process instead (PyTorch's data loader: `multiprocessing_context="spawn"`).

    Args:
        spec: what and where.
        patience: with the durable tier.
        tier: in place of the spec's durable tier, for tests of failures.

    Raises:
        InputError: peers are named but the environment has no peer key.
    """

    def __init__(
        self, spec: StoreSpec, *, patience: Patience | None = None, tier: Tier | None = None
    ) -> None:
        self.spec = spec
        self.patience = patience or Patience()
        self.tier = tier or open_tier(spec.durable, spec)
        self.cache = PartCache(Path(spec.cache).expanduser(), spec.cache_limit_bytes)
        self._caches = {"cache": self.cache}
        if spec.shared_cache:
            shared = Path(spec.shared_cache).expanduser()
            self._caches["shared_cache"] = PartCache(shared, spec.shared_cache_limit_bytes)
        self._sources = {
            check_prefix(prefix): open_tier(url, spec)
            for prefix, url in sorted(spec.sources.items(), reverse=True)
        }
        key = os.environ.get(PEER_KEY, "")
        if (spec.peers or spec.listen) and not key:
            raise InputError("must be set where peers or listen are", field=PEER_KEY)
        self.peers = Peers(spec.peers, key) if spec.peers else None
        self.server = PeerServer(self.cache, spec.listen, key) if spec.listen else None
        self.fetcher = Fetcher(self._caches, self.peers, self.patience)
        self.sender = Sender(self.tier, self.cache, self.patience)
        self.quotas = Quotas(self.tier, spec.quotas_bytes)
        self._sending: list[Future[None]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Waits for what is on its way, whether it arrives or not, and ends all threads."""
        self.sender.close()
        self.fetcher.close()
        if self.peers is not None:
            self.peers.close()
        if self.server is not None:
            self.server.close()

    def look_up(self, name: str, version: str = "") -> OpenedFile:
        """What a name stands for now.

        Args:
            name: of a file.
            version: that version of it, which must be the current one or pinned.

        Raises:
            Absent: nothing is stored under it.
            StorageError: the durable tier failed.
        """
        check_name(name)
        source = self.source_of(name)
        if source is not None:
            tier, key = source
            found = retried(lambda: tier.head(key), self.patience)
            return _source_file(name, tier, key, found.etag, found.size_bytes)
        manifest, content = self.manifest(name)
        if version and manifest.version != version:
            manifest, content = self._pinned_manifest(name, version)
        return OpenedFile(
            name,
            manifest.version,
            manifest.size_bytes,
            manifest.part_bytes,
            self.tier,
            checksums=tuple(manifest.checksums),
            content=content if manifest.inline else None,
        )

    def listed(self, entry: Entry) -> OpenedFile:
        """As `look_up` for one line of a listing; a source's object costs no request.

        Raises:
            StorageError: as `look_up`.
        """
        source = self.source_of(entry.name)
        if source is None or entry.size_bytes is None or not entry.etag:
            return self.look_up(entry.name)
        return _source_file(entry.name, *source, entry.etag, entry.size_bytes)

    def open(self, name: str, version: str = "", *, read_ahead: int = READ_AHEAD) -> StoreFile:
        """Opens a file for reading; see `look_up` and `StoreFile`."""
        return StoreFile(self.fetcher, self.look_up(name, version), read_ahead)

    def read(self, name: str) -> bytearray:
        """All of a file.

        Raises:
            StorageError: as `look_up` and `Fetcher.fetch`.
        """
        file = self.look_up(name)
        data = bytearray(file.size_bytes)
        read_whole(self.fetcher, file, memoryview(data))
        return data

    def read_into(self, name: str, into: Buffer) -> int:
        """All of a file, to the begin of a writable buffer that is large enough; returns the file's size.

        Raises:
            StorageError: as `look_up` and `Fetcher.fetch`.
            ValueError: the buffer is too small.
        """
        file = self.look_up(name)
        view = memoryview(into).cast("B")
        if view.nbytes < file.size_bytes:
            raise ValueError(f"{name} has {file.size_bytes} bytes, the buffer {view.nbytes}")
        read_whole(self.fetcher, file, view[: file.size_bytes])
        return file.size_bytes

    def create(self, name: str, *, part_bytes: int = PART_BYTES, local: bool = True) -> Upload:
        """Begins to write a file; it replaces what is under the name when it is complete.

        Args:
            name: of the file.
            part_bytes: size of its parts.
            local: False skips the local copy.

        Raises:
            InputError: the name cannot be one, or is below a source.
        """
        check_name(name)
        if self.source_of(name) is not None:
            raise InputError("is below a source, which is read-only", field="name", value=name)
        return Upload(
            self.sender,
            name,
            uuid.uuid4().hex,
            created_ns=time.time_ns(),
            part_bytes=part_bytes,
            local=local and self.cache.usable,
            allow=lambda size: self.quotas.charge(name, size),
        )

    def write(self, name: str, data: Buffer, *, local: bool = True) -> Future[None]:
        """Writes a file at once; returns as `Upload.close`."""
        upload = self.create(name, local=local)
        try:
            upload.write(data)
        except StorageError:
            upload.abort()
            raise
        return self.track(upload.close())

    def put_file(self, path: Path, name: str, *, local: bool = True) -> Future[None]:
        """Writes a file of the disk; returns as `Upload.close`.

        Raises:
            InputError: it cannot be read.
        """
        upload = self.create(name, local=local)
        try:
            with path.open("rb", buffering=0) as source:
                buffer = memoryview(bytearray(PART_BYTES))
                while got := source.readinto(buffer):
                    upload.write(buffer[:got])
        except OSError as error:
            upload.abort()
            raise InputError(f"cannot be read: {error.strerror}", file=str(path)) from None
        except StorageError:
            upload.abort()
            raise
        return self.track(upload.close())

    def get_file(self, name: str, path: Path) -> int:
        """Copies a file to the disk, whole or not at all; returns its size.

        Raises:
            InputError: the disk does not take it.
        """
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        try:
            with self.open(name) as source, temporary.open("wb", buffering=0) as target:
                while piece := source.next_piece():
                    while piece:
                        piece = piece[target.write(piece) :]
                os.fsync(target.fileno())
            os.replace(temporary, path)
        except OSError as error:
            raise InputError(f"cannot be written: {error.strerror}", file=str(path)) from None
        finally:
            temporary.unlink(missing_ok=True)
        return source.file.size_bytes

    def track(self, sending: Future[None]) -> Future[None]:
        """Lets `flush` wait for it too."""
        self._sending = [one for one in self._sending if not one.done() or one.exception() is not None]
        self._sending.append(sending)
        return sending

    def flush(self) -> None:
        """Waits until all that was written through this store is durable.

        Raises:
            StorageError: the first failure; what failed stays on the local disk for `resume`.
        """
        waiting, self._sending = self._sending, []
        failures = [error for error in (one.exception() for one in waiting) if error is not None]
        if failures:
            raise failures[0]

    def resume(self) -> list[str]:
        """Takes up what dead processes of this node left unsent; `flush` waits for it. Returns the names."""
        taken = resume(self.sender, lambda: uuid.uuid4().hex)
        for _, sending in taken:
            self.track(sending)
        return [name for name, _ in taken]

    def num_unsent(self) -> int:
        """Uploads on the local disk: on their way, or left by processes that died."""
        try:
            return sum(1 for _ in self.sender.outgoing.iterdir())
        except OSError:
            return 0

    def files(self, prefix: str = "") -> Iterator[Entry]:
        """Every file below a prefix, page by page; sizes are None for files of ours (see `look_up`)."""
        bare = check_prefix(prefix)
        for source, tier in self._sources.items():
            below = _below(bare, source)
            if below is not None:
                for one in tier.list(below):
                    yield Entry(f"{source}/{one.key}", one.size_bytes, one.modified_ns, one.etag)
                if source == bare or below:
                    return
        for one in self.tier.list(file_key(bare).rstrip("/")):
            yield Entry(one.key.removeprefix("files/"), None, one.modified_ns)

    def level(self, prefix: str = "") -> tuple[list[Entry], list[str]]:
        """The files right below a prefix, and the names of the folders there."""
        bare = check_prefix(prefix)
        source = self.source_of(bare) if bare else None
        if source is not None:
            tier, key = source
            start = bare.removesuffix(key).rstrip("/")
            found = retried(lambda: tier.level(key), self.patience)
            entries = [Entry(f"{start}/{one.key}", one.size_bytes, one.modified_ns) for one in found.objects]
            return entries, [f"{start}/{folder}" for folder in found.folders]
        found = retried(lambda: self.tier.level(file_key(bare).rstrip("/")), self.patience)
        own = [Entry(one.key.removeprefix("files/"), None, one.modified_ns) for one in found.objects]
        folders = {folder.rstrip("/").removeprefix("files/") for folder in found.folders}
        for name in self._sources:
            if name.startswith(f"{bare}/" if bare else ""):
                rest = name.removeprefix(f"{bare}/" if bare else "")
                folders.add((f"{bare}/" if bare else "") + rest.partition("/")[0])
        return own, sorted(folders)

    def remove(self, name: str) -> None:
        """Takes a file out of the namespace; `collect` frees its space later.

        Raises:
            Absent: there is none.
            Pinned: somebody needs it.
            InputError: it is below a source.
        """
        check_name(name)
        if self.source_of(name) is not None:
            raise InputError("is below a source, which is read-only", field="name", value=name)
        version = self.manifest(name)[0].version
        owners = self.pins(name, version)
        if owners:
            raise Pinned(f"{name}: pinned by {', '.join(owners)}")
        retried(lambda: self.tier.delete([file_key(name)]), self.patience)

    def pin(self, name: str, owner: str) -> str:
        """Keeps the current version of a file until `unpin`, also when it is replaced; returns the version.

        Raises:
            Absent: there is no such file.
        """
        check_name(owner.replace("/", "-"), field="owner")
        manifest, content = self.manifest(name)
        while True:
            key = pin_key(name, manifest.version, owner.replace("/", "-"))
            self.sender.put(key, encode(manifest, content))
            # Had it been replaced meanwhile, the garbage collector may not have seen the pin in time.
            again, content = self.manifest(name)
            if again.version == manifest.version:
                return manifest.version
            self.tier.delete([key])
            manifest = again

    def unpin(self, name: str, version: str, owner: str) -> None:
        """Takes a pin away."""
        key = pin_key(check_name(name), version, owner.replace("/", "-"))
        retried(lambda: self.tier.delete([key]), self.patience)

    def pins(self, name: str, version: str) -> tuple[str, ...]:
        """Owners of the pins of one version."""
        prefix = pin_key(name, version, "")
        found = retried(lambda: self.tier.level(prefix.rstrip("/")), self.patience)
        return tuple(one.key.removeprefix(prefix) for one in found.objects)

    def manifest(self, name: str) -> tuple[Manifest, bytes]:
        """The current manifest of a file of ours, and its content where that is inline.

        Raises:
            Absent: there is none.
            Damaged: it is not what was written.
        """
        check_name(name)
        try:
            return decode(name, retried(lambda: self.tier.get(file_key(name)), self.patience))
        except Absent:
            raise Absent(f"{name}: no such file in {self.spec.durable}") from None

    def source_of(self, name: str) -> tuple[Tier, str] | None:
        """The source that a name is below, and its key there; None for names of ours."""
        for prefix, tier in self._sources.items():
            if name == prefix or name.startswith(f"{prefix}/"):
                return tier, name.removeprefix(prefix).lstrip("/")
        return None

    def _pinned_manifest(self, name: str, version: str) -> tuple[Manifest, bytes]:
        owners = self.pins(name, version)
        if not owners:
            raise Absent(f"{name}: version {version} is neither current nor pinned")
        return decode(name, retried(lambda: self.tier.get(pin_key(name, version, owners[0])), self.patience))


def _below(prefix: str, source: str) -> str | None:
    """The part of a source that a listing of `prefix` covers: a key in it, "" for all, None for nothing."""
    if not prefix or source == prefix or source.startswith(f"{prefix}/"):
        return ""
    if prefix.startswith(f"{source}/"):
        return prefix.removeprefix(f"{source}/")
    return None


def _source_file(name: str, tier: Tier, key: str, etag: str, size_bytes: int) -> OpenedFile:
    """A plain object: cached under an id of its place and content tag."""
    text = f"{tier.url}\0{key}\0{etag}\0{size_bytes}"
    version = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    return OpenedFile(name, version, size_bytes, PART_BYTES, tier, key=key, etag=etag)
