"""From a lease to something to run, and what is checked before a job or a service is accepted.

An attempt of a job runs the user's command or the built-in trainer, once a rank, in an environment like
torchrun's. A replica runs what the adapter of its model server says. Blocks on SQL and files.
"""

from __future__ import annotations

import shutil
import socket
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import sqlalchemy as sa

from groundplane.control.actions import StartWork
from groundplane.control.core import ControlCore
from groundplane.control.events import Gang
from groundplane.control.placement import num_slots
from groundplane.platform.engines.contract import Launch
from groundplane.platform.runtime.database import Database
from groundplane.platform.runtime.device_kinds import gang_on, memory_cap_bytes, part_env
from groundplane.platform.runtime.store import Endpoint, Prepared
from groundplane.platform.runtime.tables import jobs, service_generations
from groundplane.spec.errors import InputError, InvariantError, nearest_name
from groundplane.spec.job import JobSpec
from groundplane.spec.load import from_data
from groundplane.spec.service import ServiceSpec
from groundplane.spec.units import show_bytes

TRAINER: Final = "groundplane.platform.training.worker"
DISK_RESERVE_BYTES: Final = 64 << 20
"""What must be free on the state folder's disk to accept a job: journal, logs and reports need it."""
LOOPBACK: Final = "127.0.0.1"

SpecT = TypeVar("SpecT")


class LocalLauncher:
    """Makes launches for the nodes of this machine.

    Args:
        state: the state folder.
        database: where the specs are.
    """

    def __init__(self, state: Path, database: Database) -> None:
        self._state = state
        self._database = database

    def prepare(self, action: StartWork) -> Prepared:
        """See `driver.Launcher`.

        Raises:
            InputError: a model that is not there any more, or a server that cannot be started.
            OSError: the job's folder cannot be written.
        """
        if action.kind == "attempt":
            return Prepared(launch=self._attempt(action))
        return self._replica(action)

    def _attempt(self, action: StartWork) -> Launch:
        spec = self._read(JobSpec, sa.select(jobs.c.spec).where(jobs.c.job_id == action.owner_id))
        job_folder = self._state / "jobs" / action.owner_id
        job_folder.mkdir(parents=True, exist_ok=True)
        command = spec.command
        if spec.train is not None:
            command = (sys.executable, "-m", TRAINER)
            _write_once(job_folder / "train.json", msgspec.json.encode(spec.train))
        port = free_port()
        return Launch(
            work_id=action.work_id,
            fence=action.fence,
            kind="attempt",
            placement=action.placement,
            commands=(command,) * len(action.placement),
            envs=tuple(self._rank_env(action, spec, rank, port) for rank in range(len(action.placement))),
            memory_bytes_per_rank=memory_cap_bytes(spec.memory_per_rank_bytes, action),
        )

    def _rank_env(self, action: StartWork, spec: JobSpec, rank: int, port: int) -> dict[str, str]:
        nodes = [place.node_id for place in action.placement]
        node_id = nodes[rank]
        return (
            spec.env
            | part_env(action)
            | {
                "RANK": str(rank),
                "WORLD_SIZE": str(len(nodes)),
                "LOCAL_RANK": str(nodes[:rank].count(node_id)),
                "LOCAL_WORLD_SIZE": str(Counter(nodes)[node_id]),
                "MASTER_ADDR": LOOPBACK,
                "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": str(spec.devices_per_rank),
                "GLOO_SOCKET_IFNAME": "lo",
                "PYTHONUNBUFFERED": "1",
                "GROUNDPLANE_JOB_ID": action.owner_id,
                "GROUNDPLANE_WORK_ID": action.work_id,
                "GROUNDPLANE_FENCE": str(action.fence),
                "GROUNDPLANE_JOB_DIR": str(self._state / "jobs" / action.owner_id),
                "GROUNDPLANE_WORK_DIR": str(self._state / "works" / action.work_id),
            }
        )

    def _replica(self, action: StartWork) -> Prepared:
        from groundplane.platform.serving.servers import replica_launch

        generations = service_generations.c
        spec = self._read(
            ServiceSpec,
            sa.select(generations.spec).where(
                (generations.service_id == action.owner_id) & (generations.generation == action.generation)
            ),
        )
        path = model_file(self._state, self._database, spec)
        replica = replica_launch(spec, path, free_port(), spec.devices_per_replica)
        launch = Launch(
            work_id=action.work_id,
            fence=action.fence,
            kind="replica",
            placement=action.placement,
            commands=(replica.command,),
            envs=({"OMP_NUM_THREADS": str(spec.devices_per_replica)} | part_env(action) | replica.env,),
            memory_bytes_per_rank=memory_cap_bytes(spec.memory_per_replica_bytes, action),
            ready_url=replica.ready_url,
        )
        endpoint = Endpoint(
            service_id=action.owner_id, model_name=spec.name, server=spec.server, url=replica.base_url
        )
        return Prepared(launch=launch, endpoint=endpoint)

    def _read(self, kind: type[SpecT], query: sa.Select[Any]) -> SpecT:
        with self._database.reading() as connection:
            text = connection.scalar(query)
        if not isinstance(text, str):
            raise InvariantError(f"no {kind.__name__} is stored for a work that was leased")
        return from_data(msgspec.json.decode(text), kind, bare=True)


def check_job(spec: JobSpec, state: Path, core: ControlCore) -> None:
    """Refuses now what could never run, before anything is written. Blocks on files.

    Raises:
        InputError: a gang that the machine could not hold even when empty, missing data, a command that is
            not there, or too little disk.
    """
    check_gang(gang_of(spec, core), core)
    for index, needed_id in enumerate(spec.after):
        if needed_id not in core.state.jobs:
            near = nearest_name(needed_id, core.state.jobs)
            rule = "no such job, or one that ended long ago"
            raise InputError(rule, field=f"after[{index}]", value=needed_id, nearest=near)
    if spec.command and shutil.which(spec.command[0], path=spec.env.get("PATH")) is None:
        raise InputError("no such program", field="command[0]", value=spec.command[0])
    if spec.train is not None:
        from groundplane.platform.training import corpus
        from groundplane.platform.training.worker import check_disk

        try:
            corpus.check(spec.train.data, spec.train.text_field)
            check_disk(state, spec.train)
        except InputError as error:
            inner = "train" if error.field is None else f"train.{error.field}"
            raise InputError(error.rule, field=inner, value=error.value, nearest=error.nearest) from None
    free_bytes = shutil.disk_usage(state).free
    if free_bytes < DISK_RESERVE_BYTES:
        raise InputError(
            f"too little disk in the state folder: the platform keeps {show_bytes(DISK_RESERVE_BYTES)}, "
            f"{show_bytes(free_bytes)} are free"
        )


def check_service(spec: ServiceSpec, state: Path, database: Database, core: ControlCore) -> None:
    """Refuses a service whose replica could never run. Blocks on SQL and files.

    Raises:
        InputError: unknown model, a replica larger than any node, or no usable URL.
    """
    if spec.server.startswith("openai"):
        from groundplane.platform.serving.upstream import Origin

        Origin.of(spec.url)
        return
    check_gang(replica_gang(spec, core), core, what="replica")
    model_file(state, database, spec)


def check_gang(gang: Gang, core: ControlCore, *, what: str = "rank") -> None:
    """Refuses a gang that does not fit onto the nodes that are known even when all of them are empty.

    Raises:
        InputError: says what is needed and what there is.
    """
    nodes = [node for node in core.state.nodes.values() if not gang.kinds or node.device_kind in gang.kinds]
    num_devices = max((node.num_devices for node in nodes), default=0)
    memory_bytes = max((node.memory_bytes for node in nodes), default=0)
    if gang.devices_per_rank > num_devices:
        raise InputError(
            f"must be at most {num_devices}, the devices of the largest node",
            field=f"devices_per_{what}",
            value=gang.devices_per_rank,
        )
    if gang.memory_bytes_per_rank > memory_bytes:
        raise InputError(
            f"must be at most {show_bytes(memory_bytes)}, the memory of the largest node",
            field=f"memory_per_{what}",
            value=show_bytes(gang.memory_bytes_per_rank),
        )
    slots = Counter[str]()  # by device kind: a gang never spans two
    for node in nodes:
        slots[node.device_kind] += num_slots(node.num_devices, node.memory_bytes, gang)
    most = max(slots.values(), default=0)
    if most < gang.num_ranks:
        raise InputError(
            f"must be at most {most}: so many ranks of {gang.devices_per_rank} devices and "
            f"{show_bytes(gang.memory_bytes_per_rank)} fit onto all nodes of one kind",
            field="ranks",
            value=gang.num_ranks,
        )


def model_file(state: Path, database: Database, spec: ServiceSpec) -> str:
    """What the server of a service loads.

    Raises:
        InputError: no such registered model or file.
    """
    from groundplane.platform.serving.registry import model_path

    return str(model_path(state, database, spec.model))


def gang_of(spec: JobSpec, core: ControlCore) -> Gang:
    """What the control core is asked for: the smallest gang that the job can run with.

    Raises:
        InputError: no node offers such devices.
    """
    return gang_on(spec.device, core, Gang(spec.sizes[0], spec.devices_per_rank, spec.memory_per_rank_bytes))


def replica_gang(spec: ServiceSpec, core: ControlCore) -> Gang:
    """What the control core is asked for, for one replica.

    Raises:
        InputError: no node offers such devices.
    """
    return gang_on(spec.device, core, Gang(1, spec.devices_per_replica, spec.memory_per_replica_bytes))


def stops_at_checkpoint(spec: JobSpec) -> bool:
    """Whether the job leaves a drained node at its next checkpoint."""
    return spec.train is not None if spec.stops_at_checkpoint is None else spec.stops_at_checkpoint


def free_port() -> int:
    """A TCP port of the loopback address that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def _write_once(path: Path, content: bytes) -> None:
    """Writes a file whole or not at all; one with this content already stays."""
    if path.exists() and path.read_bytes() == content:
        return
    beside = path.with_name(f".{path.name}.new")
    beside.write_bytes(content)
    beside.replace(path)
