"""The store as an fsspec file system, for every library that reads and writes through one.

`fsspec.open("groundplane://runs/a/w.bin", store="store.yaml")`; pandas, pyarrow, datasets and PyTorch's
Distributed Checkpoint take such URLs or this file system itself.
"""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar

from fsspec.spec import AbstractFileSystem

from groundplane.platform.storage.errors import Absent
from groundplane.platform.storage.reading import NUM_READERS
from groundplane.platform.storage.spec import StoreSpec, load_store
from groundplane.platform.storage.store import Entry, Store

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from groundplane.platform.storage.writing import Upload


class StoreFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """Args:
    store: a store file's path, the URL of a durable tier, or a `StoreSpec`.
    """

    protocol: ClassVar[str] = "groundplane"
    root_marker: ClassVar[str] = ""

    def __init__(self, store: str | StoreSpec, **options: Any) -> None:
        super().__init__(store=store, **options)
        self.store = Store(load_store(store) if isinstance(store, str) else store)

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """One level; sizes of files of ours are read from their manifests, several at a time."""
        bare = self._strip_protocol(path)
        entries, folders = self.store.level(bare)
        if not entries and not folders:
            entries = [_entry(self.store, bare)]
        if not detail:
            return sorted([entry.name for entry in entries] + folders)
        with ThreadPoolExecutor(NUM_READERS) as pool:
            sizes = list(pool.map(self._size, entries))
        files = [_file(entry.name, size) for entry, size in zip(entries, sizes, strict=True)]
        return sorted(files + [_folder(name) for name in folders], key=lambda one: str(one["name"]))

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Kind and size of one name."""
        bare = self._strip_protocol(path)
        try:
            if bare:
                return _file(bare, self.store.look_up(bare).size_bytes)
        except Absent:
            pass
        entries, folders = self.store.level(bare)
        if bare and not entries and not folders:
            raise FileNotFoundError(bare)
        return _folder(bare)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        """Bytes of one file; negative positions count from its end."""
        with self._open(path) as file:
            size = file.file.size_bytes
            first, last, _step = slice(start, end).indices(size)
            file.seek(first)
            return bytes(file.read(max(0, last - first)))

    def rm_file(self, path: str) -> None:
        """Removes one file."""
        bare = self._strip_protocol(path)
        try:
            self.store.remove(bare)
        except Absent:
            raise FileNotFoundError(bare) from None

    _rm = rm_file

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Removes files; folders go with their last file."""
        for one in self.expand_path(path, recursive=recursive, maxdepth=maxdepth):
            if recursive and not self.isfile(one):
                continue
            self.rm_file(one)

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        """Copies one file, through this process."""
        with self._open(path1) as source, self._open(path2, "wb") as target:
            while piece := source.next_piece():
                target.write(piece)

    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        """Nothing: a folder is there as long as something is in it."""

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Nothing, as `mkdir`."""

    def rmdir(self, path: str) -> None:
        """Nothing, as `mkdir`."""

    def _rmdir(self, path: str) -> None:
        """Nothing, as `mkdir`."""

    def created(self, path: str) -> Any:
        """As `modified`: a name's content is written once."""
        return self.modified(path)

    def modified(self, path: str) -> Any:
        """When the current version was written."""
        import datetime

        created_ns = self.store.manifest(self._strip_protocol(path))[0].created_ns
        return datetime.datetime.fromtimestamp(created_ns / 1e9, tz=datetime.UTC)

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,  # noqa: ARG002
        autocommit: bool = True,  # noqa: ARG002
        cache_options: Any = None,  # noqa: ARG002
        **_: Any,
    ) -> Any:
        bare = self._strip_protocol(path)
        if mode == "rb":
            try:
                return self.store.open(bare)
            except Absent:
                raise FileNotFoundError(bare) from None
        if mode in {"wb", "xb"}:
            if mode == "xb" and self.exists(bare):
                raise FileExistsError(bare)
            return StoreWriter(self.store.create(bare))
        raise NotImplementedError(f"a stored file can be opened with 'rb', 'wb' and 'xb', not with {mode!r}")

    def _size(self, entry: Entry) -> int:
        return entry.size_bytes if entry.size_bytes is not None else self.store.look_up(entry.name).size_bytes


class StoreWriter(io.RawIOBase):
    """An `Upload` as a file: durable when `close` returns, dropped when the `with` block fails.

    Args:
        upload: what to write to.
    """

    def __init__(self, upload: Upload) -> None:
        self._upload = upload
        self._position = 0

    @property
    def name(self) -> str:
        """Its name in the namespace."""
        return self._upload.name

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def write(self, data: Buffer, /) -> int:
        """Adds bytes.

        Raises:
            StorageError: as `Upload.write`.
        """
        if self.closed:
            raise ValueError("the file is closed")
        written = self._upload.write(data)
        self._position += written
        return written

    def close(self) -> None:
        """Makes it durable and visible.

        Raises:
            StorageError: as `Upload.close`.
        """
        if not self.closed:
            super().close()
            self._upload.close().result()

    def discard(self) -> None:
        """Drops it."""
        if not self.closed:
            super().close()
            self._upload.abort()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.discard()
        else:
            self.close()

    def __del__(self) -> None:
        # io's own would close, that is publish, a file that its writer lost.
        if not self.closed:
            self.discard()


def _entry(store: Store, name: str) -> Entry:
    try:
        if not name:
            raise Absent(name)
        return Entry(name, store.look_up(name).size_bytes, 0)
    except Absent:
        raise FileNotFoundError(name) from None


def _file(name: str, size_bytes: int) -> dict[str, Any]:
    return {"name": name, "size": size_bytes, "type": "file"}


def _folder(name: str) -> dict[str, Any]:
    return {"name": name, "size": 0, "type": "directory"}
