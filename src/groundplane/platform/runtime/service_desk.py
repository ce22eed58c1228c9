"""What can be asked of services: deploy, scale, remove, list. Between the HTTP routes and the driver.

A service's id is its name. One with server `openai` is run by somebody else: it is a row that the gateway
reads and nothing else, so the control core never hears of it. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy.engine import Connection

from groundplane.control import events as ev
from groundplane.control.views import ServiceView, service_view
from groundplane.platform.runtime import launch, store, tables
from groundplane.platform.runtime.database import Database, upsert
from groundplane.platform.runtime.driver import Driver
from groundplane.platform.runtime.job_desk import MissingError, restart_policy
from groundplane.spec.errors import InputError, nearest_name
from groundplane.spec.load import from_data
from groundplane.spec.service import ServiceSpec


class Service(Struct, frozen=True):
    """A service as it stands: its description, and what runs of it (None for one that somebody else runs)."""

    name: str
    project: str
    generation: int
    spec: ServiceSpec
    running: ServiceView | None


class ServiceDesk:
    """Services of one platform.

    Args:
        state: the state folder.
        database: descriptions and endpoints.
        driver: takes events.
    """

    def __init__(self, state: Path, database: Database, driver: Driver) -> None:
        self._state = state
        self._database = database
        self._driver = driver
        # Two changes of one service at once would both take the same generation.
        self._changing = asyncio.Lock()

    async def deploy(self, spec: ServiceSpec, *, project: str) -> Service:
        """Creates a service, or gives it a new generation; the same description again changes nothing.

        Raises:
            InputError: it could never run.
            StorageError: it could not be made durable.
        """
        await asyncio.to_thread(launch.check_service, spec, self._state, self._database, self._driver.core)
        async with self._changing:
            row = await asyncio.to_thread(self._row, spec.name)
            if row is not None and row["removed_ns"] is None:
                former = _spec_of(row)
                if former == spec:
                    return self._view(row)
                if msgspec.structs.replace(former, replicas=spec.replicas) == spec:
                    return await self._scale(row, spec)
                if is_external(former) != is_external(spec):
                    raise InputError(
                        "cannot change between run by the platform and run by somebody else; remove it first",
                        field="server",
                        value=spec.server,
                    )
            return await self._write(
                spec, project, generation=row["generation"] + 1 if row is not None else 1
            )

    async def scale(self, name: str, replicas: int) -> Service:
        """Changes how many replicas are wanted.

        Raises:
            MissingError: no such service.
            InputError: it is run by somebody else.
        """
        async with self._changing:
            row = await asyncio.to_thread(self._find, name)
            spec = msgspec.structs.replace(_spec_of(row), replicas=replicas)
            if is_external(spec):
                raise InputError(
                    "is run by somebody else and cannot be scaled here", field="service", value=name
                )
            return await self._scale(row, spec)

    async def remove(self, name: str) -> Service:
        """Removes a service: its replicas drain and stop.

        Raises:
            MissingError: no such service.
        """
        async with self._changing:
            row = await asyncio.to_thread(self._find, name)
            now_ns = self._driver.now_ns()

            def also(connection: Connection) -> None:
                named = tables.services.c.name == name
                connection.execute(tables.services.update().where(named).values(removed_ns=now_ns))
                if is_external(_spec_of(row)):
                    gone = tables.endpoints.c.service_id == name
                    connection.execute(tables.endpoints.delete().where(gone))

            await self._change(_spec_of(row), ev.ServiceRemoved(service_id=name), also)
            return self._view(row)

    async def list_services(self) -> list[Service]:
        """Services that were not removed, by name."""
        rows = await asyncio.to_thread(self._rows)
        return [self._view(row) for row in rows]

    async def view(self, name: str) -> Service:
        """One service.

        Raises:
            MissingError: no such service.
        """
        return self._view(await asyncio.to_thread(self._find, name))

    async def _write(self, spec: ServiceSpec, project: str, *, generation: int) -> Service:
        text = msgspec.json.encode(spec).decode()
        row = {
            "service_id": spec.name,
            "name": spec.name,
            "project": project,
            "spec": text,
            "generation": generation,
            "removed_ns": None,
        }
        now_ns = self._driver.now_ns()

        def also(connection: Connection) -> None:
            upsert(tables.services, connection, row, key="service_id")
            history = {"service_id": spec.name, "generation": generation, "spec": text}
            connection.execute(tables.service_generations.insert(), history)
            if is_external(spec):
                endpoint = store.Endpoint(
                    service_id=spec.name, model_name=spec.name, server=spec.server, url=spec.url
                )
                store.add_endpoint(connection, f"{spec.name}.external", 0, endpoint, now_ns)

        event = ev.ServiceDeployed(
            service_id=spec.name,
            name=spec.name,
            queue=spec.queue,
            priority=spec.priority,
            num_replicas=spec.replicas,
            gang=launch.replica_gang(spec, self._driver.core),
            restart=restart_policy(spec.restart),
            drain_ns=round(spec.drain_s * 1e9),
            unready_limit_ns=round(spec.unready_limit_s * 1e9),
            generation=generation,
        )
        await self._change(spec, event, also)
        return self._view(row)

    async def _scale(self, row: Any, spec: ServiceSpec) -> Service:
        text = msgspec.json.encode(spec).decode()
        named = tables.services.c.name == spec.name
        await self._change(
            spec,
            ev.ServiceScaled(service_id=spec.name, num_replicas=spec.replicas),
            lambda connection: connection.execute(tables.services.update().where(named).values(spec=text)),
        )
        return self._view({**row, "spec": text})

    async def _change(self, spec: ServiceSpec, event: ev.AnyEvent, also: store.Also) -> None:
        if is_external(spec):
            await self._driver.sql(lambda: self._write_rows(also))
        else:
            await self._driver.handle(event, also)

    def _write_rows(self, also: store.Also) -> None:
        with self._database.begin() as connection:
            also(connection)

    def _view(self, row: Any) -> Service:
        return Service(
            name=row["name"],
            project=row["project"],
            generation=row["generation"],
            spec=_spec_of(row),
            running=service_view(self._driver.core, row["service_id"]),
        )

    def _row(self, name: str) -> sa.RowMapping | None:
        query = sa.select(tables.services).where(tables.services.c.name == name)
        with self._database.reading() as connection:
            return connection.execute(query).mappings().first()

    def _rows(self) -> list[sa.RowMapping]:
        services = tables.services
        query = sa.select(services).where(services.c.removed_ns.is_(None)).order_by(services.c.name)
        with self._database.reading() as connection:
            return list(connection.execute(query).mappings())

    def _find(self, name: str) -> sa.RowMapping:
        rows = self._rows()
        for row in rows:
            if row["name"] == name:
                return row
        near = nearest_name(name, [row["name"] for row in rows])
        raise MissingError("no such service", field="service", value=name, nearest=near)


def is_external(spec: ServiceSpec) -> bool:
    """Whether somebody else runs the server."""
    return spec.server.startswith("openai")


def _spec_of(row: Any) -> ServiceSpec:
    return from_data(msgspec.json.decode(row["spec"]), ServiceSpec, bare=True)
