"""Names, keys and manifests: how a file lies in the durable tier.

A file is cut into parts of `part_bytes`, the last one shorter. Its parts are objects of their own, written
first; its manifest is written last and makes it visible:

    files/NAME                       the manifest: one JSON line; the content follows in it when it is small
    parts/NAME/VERSION/000000 ...    the parts of one version, never written to again
    parts/NAME/VERSION/open          there from the begin of the upload on; what `collect` deletes first
    parts/NAME/VERSION/retired       set by `collect` when it first finds the version unused
    pins/NAME/VERSION/OWNER          a copy of the manifest: this version is needed by OWNER

A version is a random id, so a part belongs to one manifest only, and collecting garbage has no shared chunk
to reason about. Checksums are XXH3 with 128 bits: they find every accident, and are no protection against an
attacker who can write to the tier. Knows no tier and does no input or output.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import xxhash

from groundplane.platform.storage.errors import Damaged
from groundplane.spec.errors import InputError

if TYPE_CHECKING:
    from typing_extensions import Buffer

PART_BYTES: Final = 16 * 2**20
"""Size of a part: the unit of transfer, of caching and of checking."""
INLINE_BYTES: Final = 128 * 2**10
"""Up to this size the content lies in the manifest: one object, one request."""
MAX_NAME_BYTES: Final = 700
"""Longest name: with version, part number and a bucket's prefix it fits into a key of 1,024 bytes."""
MAX_COMPONENT_BYTES: Final = 200
"""Longest part of a name between two '/': file systems end at 255."""
OPEN: Final = "open"
RETIRED: Final = "retired"
"""Marks beside a version's parts."""
_FORMAT: Final = 1
_REFUSED: Final = frozenset('\\%#?*[]{}^|"<>~`')
"""Characters that an object store's URL would need to escape, each in its own way."""


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the first line of a manifest object says.

    `checksums` has one entry a part, in hexadecimal. `digest` is over all other fields, so that a flipped bit
    in the manifest itself is seen.
    """

    format: int
    name: str
    version: str
    size_bytes: int
    part_bytes: int
    created_ns: int
    inline: bool
    checksums: list[str]
    digest: str = ""

    @property
    def num_parts(self) -> int:
        """Number of parts, 0 for an empty file."""
        return -(-self.size_bytes // self.part_bytes)

    def computed_digest(self) -> str:
        """Checksum over every field but `digest`."""
        return checksum(msgspec.json.encode(msgspec.structs.replace(self, digest="")))


def make_manifest(
    name: str,
    version: str,
    *,
    size_bytes: int,
    part_bytes: int,
    created_ns: int,
    inline: bool,
    checksums: list[str],
) -> Manifest:
    """A sealed manifest."""
    bare = Manifest(_FORMAT, name, version, size_bytes, part_bytes, created_ns, inline, checksums)
    return msgspec.structs.replace(bare, digest=bare.computed_digest())


def encode(manifest: Manifest, content: bytes = b"") -> bytes:
    """The manifest object: its line, and the content behind it where it is inline."""
    return msgspec.json.encode(manifest) + b"\n" + content


def decode(name: str, stored: Buffer) -> tuple[Manifest, bytes]:
    """A manifest and its inline content (empty where the content is in parts).

    Raises:
        Damaged: not a manifest, not of this name, or another digest, size or checksum than it says.
    """
    line, _, content = bytes(stored).partition(b"\n")
    try:
        manifest = msgspec.json.decode(line, type=Manifest)
    except msgspec.MsgspecError:
        raise Damaged(f"{name}: its manifest cannot be read") from None
    if manifest.digest != manifest.computed_digest():
        raise Damaged(f"{name}: its manifest is damaged")
    if manifest.format != _FORMAT:
        raise Damaged(f"{name}: its manifest has format {manifest.format}, this is format {_FORMAT}")
    if manifest.name != name or len(manifest.checksums) != manifest.num_parts:
        raise Damaged(f"{name}: its manifest describes something else")
    if manifest.inline:
        sums = [checksum(content)] if content else []
        if len(content) != manifest.size_bytes or sums != manifest.checksums:
            raise Damaged(f"{name}: its content is damaged")
    return manifest, content


def checksum(data: Buffer) -> str:
    """XXH3-128 in hexadecimal."""
    return xxhash.xxh3_128_hexdigest(data)


def part_length(size_bytes: int, part_bytes: int, number: int) -> int:
    """Bytes of one part."""
    return min(part_bytes, size_bytes - number * part_bytes)


def file_key(name: str) -> str:
    """Key of a file's manifest; of a prefix's manifests for a prefix."""
    return f"files/{name}"


def version_prefix(name: str, version: str) -> str:
    """What the keys of one version's parts begin with."""
    return f"parts/{name}/{version}/"


def part_key(name: str, version: str, number: int) -> str:
    """Key of one part."""
    return f"parts/{name}/{version}/{number:06d}"


def pin_key(name: str, version: str, owner: str) -> str:
    """Key of one pin."""
    return f"pins/{name}/{version}/{owner}"


def check_name(name: str, *, field: str = "name") -> str:
    """The name as it is, where it can be one.

    Raises:
        InputError: empty, absolute, with empty or dotted parts, too long, or with characters that not every
            tier can keep.
    """
    rule = ""
    parts = name.split("/")
    if (
        not name
        or name.startswith("/")
        or name.endswith("/")
        or any(part in {"", ".", ".."} for part in parts)
    ):
        rule = "must be a relative path such as 'runs/a/weights.bin', without empty parts, '.' or '..'"
    elif len(name.encode()) > MAX_NAME_BYTES:
        rule = f"must have at most {MAX_NAME_BYTES} bytes"
    elif any(len(part.encode()) > MAX_COMPONENT_BYTES for part in parts):
        rule = f"must have at most {MAX_COMPONENT_BYTES} bytes between two '/'"
    elif not name.isprintable() or not _REFUSED.isdisjoint(name):
        rule = f"must be printable and without any of {' '.join(sorted(_REFUSED))}"
    if rule:
        raise InputError(rule, field=field, value=name)
    return name


def check_prefix(prefix: str) -> str:
    """A prefix without its trailing '/', empty for everything.

    Raises:
        InputError: as `check_name`.
    """
    bare = prefix.strip("/")
    return check_name(bare, field="prefix") if bare else ""
