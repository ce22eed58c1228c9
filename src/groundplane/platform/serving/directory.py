"""What the gateway knows of keys, models and replicas: a copy in memory, refreshed from SQL every 200 ms.

When SQL or the control plane is away, the last copy goes on being used. Choosing a replica is here too: least
outstanding requests, among those that did not just fail where there are others.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Collection
from typing import Final

import msgspec
import sqlalchemy as sa
from msgspec import Struct

from groundplane.platform.runtime.database import Database
from groundplane.platform.runtime.identity import KeyRing
from groundplane.platform.runtime.tables import api_keys, endpoints, services
from groundplane.platform.serving.servers import adapter_of
from groundplane.platform.serving.upstream import Origin
from groundplane.spec.errors import InputError

REFRESH_S: Final = 0.2
SUSPECT_S: Final = 1.0
"""A replica that failed is passed over this long where another one is ready."""


log = logging.getLogger(__name__)


class Replica:
    """One endpoint and what the gateway has on it now."""

    __slots__ = (
        "adapter", "fence", "last_chosen", "model_name", "model_there", "num_outstanding", "origin", "ready",
        "server", "suspect_until_s", "url", "work_id",
    )  # fmt: skip

    def __init__(self, work_id: str, model_name: str, server: str, url: str, fence: int) -> None:
        self.work_id = work_id
        self.model_name = model_name
        self.model_there = ""
        """What its server calls the model, where that is not `model_name`; empty otherwise."""
        self.server = server
        self.url = url
        self.fence = fence
        self.origin = Origin.of(url)
        self.adapter = adapter_of(server)
        self.ready = False
        self.num_outstanding = 0
        self.last_chosen = 0
        self.suspect_until_s = 0.0


class Directory:
    """The copy. `load` blocks and runs in a thread; the rest is for the event loop and never waits."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._keys_version: tuple[int | None, ...] | None = None
        self._num_chosen = 0
        self._refused: set[str] = set()
        self.keys = KeyRing()
        self.replicas: dict[str, Replica] = {}
        self.by_model: dict[str, list[Replica]] = {}
        self.created_s: dict[str, int] = {}
        self.loaded_s = 0.0
        """Monotonic time of the last refresh that succeeded; 0 before the first."""

    def load(self) -> None:
        """Refreshes the copy.

        Raises:
            StorageError: the database cannot be read; the copy is as it was.
        """
        with self._database.reading() as connection:
            rows = connection.execute(sa.select(endpoints)).all()
            deployed = connection.execute(
                sa.select(services.c.name, services.c.spec).where(services.c.removed_ns.is_(None))
            ).all()
            version = tuple(
                connection.execute(
                    sa.select(
                        sa.func.count(),
                        sa.func.max(api_keys.c.created_ns),
                        sa.func.count(api_keys.c.revoked_ns),
                        sa.func.count(api_keys.c.expires_ns),
                        sa.func.max(api_keys.c.expires_ns),
                    )
                ).one()
            )
        if version != self._keys_version:
            self.keys.load(self._database)
            self._keys_version = version
        replicas: dict[str, Replica] = {}
        by_model: dict[str, list[Replica]] = {service.name: [] for service in deployed}
        model_there = {service.name: _model_there(service.spec) for service in deployed}
        created_s: dict[str, int] = {}
        for row in rows:
            known = self.replicas.get(row.work_id)
            if known is None or known.url != row.url or known.fence != row.fence:
                try:
                    known = Replica(row.work_id, row.model_name, row.server, row.url, row.fence)
                except InputError as error:
                    if row.url not in self._refused:
                        self._refused.add(row.url)
                        log.error("endpoint %s is left out: %s", row.work_id, error)
                    continue
            known.ready = row.state == "ready"
            known.model_there = model_there.get(row.model_name, "")
            replicas[row.work_id] = known
            by_model.setdefault(row.model_name, []).append(known)
            created_s[row.model_name] = max(row.updated_ns // 10**9, created_s.get(row.model_name, 0))
        for work_id, replica in self.replicas.items():
            if work_id not in replicas and replica.num_outstanding:
                # Its row is gone and requests still run there: whoever drains it must see them.
                replica.ready = False
                replicas[work_id] = replica
        # Each is replaced whole, so that the event loop never sees a half-built one.
        self.replicas, self.by_model, self.created_s = replicas, by_model, created_s
        self.loaded_s = time.monotonic()

    def choose(self, model: str, now_s: float, tried: Collection[str] = ()) -> Replica | None:
        """The ready replica with the fewest requests outstanding, none of `tried`; None when there is none.

        Of equal ones the longest unused; one that just failed comes last.
        """
        best: Replica | None = None
        best_key = (True, 0, 0)
        for replica in self.by_model.get(model, ()):
            if not replica.ready or replica.work_id in tried:
                continue
            key = (replica.suspect_until_s > now_s, replica.num_outstanding, replica.last_chosen)
            if best is None or key < best_key:
                best, best_key = replica, key
        if best is not None:
            self._num_chosen += 1
            best.last_chosen = self._num_chosen
        return best


class _Deployed(Struct):
    """What is read of a service's description."""

    server: str = ""
    model: str = ""


@functools.lru_cache(maxsize=4096)
def _model_there(spec: str) -> str:
    """A server that somebody else runs knows the model by the service's `model`, where one is given."""
    try:
        deployed = msgspec.json.decode(spec, type=_Deployed)
    except msgspec.DecodeError:
        return ""
    return deployed.model if deployed.server.startswith("openai") else ""
