"""What a person writes about a store: one YAML file, or only the URL of its durable tier."""

from __future__ import annotations

import os
import urllib.parse
from pathlib import Path
from typing import Final

import msgspec

from groundplane.spec.errors import InputError, unknown_name
from groundplane.spec.load import load
from groundplane.spec.quantity import Bytes

SCHEMES: Final = ("s3", "gs", "az", "file")
"""Kinds of durable tier. `az` is Azure, `file` a shared file system."""
DEFAULT_CACHE: Final = Path("~/.cache/groundplane/store")


class StoreSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One store.

    Attributes:
        durable: URL of the tier that keeps everything: `s3://bucket/prefix`, `gs://...`, `az://container/...`
            or `file:///folder`. Credentials come from the environment, as the vendor's tools read them.
        endpoint: URL of an S3-compatible server, where it is not the vendor's.
        region: S3 region, where the environment does not say.
        cache: local folder for cached parts and for writes on their way; shared by all processes of a node.
        cache_limit_bytes: what the cache may hold.
        shared_cache: folder on a shared file system that all nodes use as one more cache.
        shared_cache_limit_bytes: what that may hold.
        sources: prefix of the namespace -> URL below which plain objects lie that others wrote; read-only.
        listen: `host:port` on which this node's cache serves its peers.
        peers: `host:port` of the other nodes' caches.
        quotas_bytes: prefix of the namespace -> bytes it may take in the durable tier.
    """

    durable: str
    endpoint: str = ""
    region: str = ""
    cache: str = str(DEFAULT_CACHE)
    cache_limit_bytes: Bytes = msgspec.field(name="cache_limit", default=100 * 10**9)
    shared_cache: str = ""
    shared_cache_limit_bytes: Bytes = msgspec.field(name="shared_cache_limit", default=10**12)
    sources: dict[str, str] = msgspec.field(default_factory=dict)
    listen: str = ""
    peers: list[str] = msgspec.field(default_factory=list)
    quotas_bytes: dict[str, Bytes] = msgspec.field(name="quotas", default_factory=dict)

    def __post_init__(self) -> None:
        check_url(self.durable, "durable")
        for prefix, url in self.sources.items():
            check_url(url, f"sources.{prefix}")
        if self.endpoint and urllib.parse.urlsplit(self.endpoint).scheme not in {"http", "https"}:
            raise InputError("must be an http or https URL", field="endpoint", value=self.endpoint)
        for address in [*self.peers, *([self.listen] if self.listen else [])]:
            split_address(address)


def load_store(where: str) -> StoreSpec:
    """The store that a file describes, or the one whose durable tier has this URL.

    Args:
        where: path of a .yaml, .toml or .json file, or a URL. With a URL the cache folder is
            $GROUNDPLANE_STORE_CACHE, where set, and the endpoint $AWS_ENDPOINT_URL.

    Raises:
        InputError: as `groundplane.spec.load.load`, or a URL of no known kind.
    """
    if "://" not in where:
        return load(where, StoreSpec)
    cache = os.environ.get("GROUNDPLANE_STORE_CACHE", str(DEFAULT_CACHE))
    return StoreSpec(durable=where, cache=cache, endpoint=os.environ.get("AWS_ENDPOINT_URL", ""))


def check_url(url: str, field: str) -> None:
    """Refuses what is no URL of a tier.

    Raises:
        InputError: unknown scheme, or the bucket or folder is missing.
    """
    parts = urllib.parse.urlsplit(url)
    if "://" not in url:
        raise InputError("must be a URL such as 's3://bucket/prefix'", field=field, value=url)
    if parts.scheme not in SCHEMES:
        raise unknown_name("kind of storage", parts.scheme, SCHEMES, field=field)
    if parts.scheme == "file" and (parts.netloc or len(parts.path) < 2):
        raise InputError("must be a URL such as 'file:///folder'", field=field, value=url)
    if parts.scheme != "file" and not parts.netloc:
        raise InputError(f"must name a bucket: '{parts.scheme}://bucket/prefix'", field=field, value=url)
    if parts.query or parts.fragment:
        raise InputError("must not have a query or a fragment", field=field, value=url)


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port`.

    Raises:
        InputError: it is not of that form.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise InputError("must be an address such as '10.0.0.1:7070'", value=address)
    return host, int(port)
