"""From a lease to commands and environments, by hand-computed values."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from groundplane.control import events as ev
from groundplane.control.actions import RankPlacement, StartWork
from groundplane.control.core import ControlCore
from groundplane.platform.runtime import launch, tables
from groundplane.platform.runtime.database import Database
from groundplane.spec.errors import InputError, InvariantError
from groundplane.spec.job import JobSpec, TrainSpec
from groundplane.spec.service import ServiceSpec


def core_with(*nodes: tuple[str, int, int]) -> ControlCore:
    core = ControlCore()
    for node_id, num_devices, memory_bytes in nodes:
        core.handle(
            0,
            ev.NodeJoined(
                node_id=node_id, device_kind="cpu", num_devices=num_devices, memory_bytes=memory_bytes
            ),
        )
    return core


def lease(owner_id: str, *placement: RankPlacement, kind: str = "attempt", generation: int = 1) -> StartWork:
    return StartWork(
        work_id=f"{owner_id}.{kind[0]}1",
        kind=kind,  # type: ignore[arg-type]
        owner_id=owner_id,
        fence=7,
        placement=placement,
        generation=generation,
    )


def test_a_job_that_is_needed_must_be_known(tmp_path: Path) -> None:
    core = core_with(("n1", 4, 1 << 40))
    known = JobSpec(name="a", command=(sys.executable,))
    gang, once = launch.gang_of(known, core), ev.RestartPolicy(budget=0, backoff_ns=0, backoff_limit_ns=0)
    core.handle(0, ev.JobSubmitted("a-x7", "a", "default", 0, gang, once, 0))
    launch.check_job(JobSpec(name="b", command=(sys.executable,), after=("a-x7",)), tmp_path, core)
    with pytest.raises(InputError, match=r"after\[1\].*did you mean 'a-x7'"):
        launch.check_job(JobSpec(name="b", command=(sys.executable,), after=("a-x7", "a-x8")), tmp_path, core)


def test_the_smallest_gang_is_asked_for() -> None:
    core = core_with(("n1", 4, 1 << 40))
    assert launch.gang_of(JobSpec(name="a", ranks=8, min_ranks=2, command=("x",)), core).num_ranks == 2


def keep_job(database: Database, job_id: str, spec: JobSpec) -> None:
    row = {"job_id": job_id, "name": spec.name, "spec": msgspec.json.encode(spec).decode(), "submitted_ns": 1}
    with database.begin() as connection:
        connection.execute(tables.jobs.insert(), row)


def test_ranks_get_an_environment_like_torchruns(tmp_path: Path, database: Database) -> None:
    spec = JobSpec(
        name="a",
        ranks=3,
        devices_per_rank=2,
        command=("run", "it"),
        env={"MINE": "1"},
        memory_per_rank_bytes=99,
    )
    keep_job(database, "a-1", spec)
    places = [RankPlacement("n1", (0, 1)), RankPlacement("n2", (2, 3)), RankPlacement("n1", (4, 5))]
    made = launch.LocalLauncher(tmp_path, database).prepare(lease("a-1", *places)).launch
    assert made.commands == (("run", "it"),) * 3
    assert (made.work_id, made.fence, made.memory_bytes_per_rank) == ("a-1.a1", 7, 99)
    first = made.envs[0]
    assert [env["RANK"] for env in made.envs] == ["0", "1", "2"]
    assert [env["LOCAL_RANK"] for env in made.envs] == ["0", "0", "1"]
    assert [env["LOCAL_WORLD_SIZE"] for env in made.envs] == ["2", "1", "2"]
    assert {env["WORLD_SIZE"] for env in made.envs} == {"3"}
    assert {env["MASTER_PORT"] for env in made.envs} == {first["MASTER_PORT"]}
    assert 1 <= int(first["MASTER_PORT"]) <= 65535
    assert (first["MINE"], first["OMP_NUM_THREADS"], first["MASTER_ADDR"]) == ("1", "2", "127.0.0.1")
    assert first["GROUNDPLANE_FENCE"] == "7"
    assert first["GROUNDPLANE_JOB_DIR"] == str(tmp_path / "jobs" / "a-1")
    assert first["GROUNDPLANE_WORK_DIR"] == str(tmp_path / "works" / "a-1.a1")


def test_a_training_job_runs_the_trainer_on_its_spec(tmp_path: Path, database: Database) -> None:
    spec = JobSpec(name="t", train=TrainSpec(steps=3))
    keep_job(database, "t-1", spec)
    launcher = launch.LocalLauncher(tmp_path, database)
    for _again in range(2):
        made = launcher.prepare(lease("t-1", RankPlacement("n1", (0,)))).launch
        assert made.commands == ((sys.executable, "-m", "groundplane.platform.training.worker"),)
        kept = (tmp_path / "jobs" / "t-1" / "train.json").read_bytes()
        assert msgspec.json.decode(kept, type=TrainSpec) == spec.train


def test_a_replica_runs_the_description_of_its_generation(tmp_path: Path, database: Database) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF" + bytes(60))
    for generation, slots in ((1, 2), (2, 5)):
        spec = ServiceSpec(name="chat", server="vllm", model=str(tmp_path), slots=slots)
        row = {"service_id": "chat", "generation": generation, "spec": msgspec.json.encode(spec).decode()}
        with database.begin() as connection:
            connection.execute(tables.service_generations.insert(), row)
    launcher = launch.LocalLauncher(tmp_path, database)
    patched = pytest.MonkeyPatch()
    patched.setattr(launch, "model_file", lambda _state, _database, spec: spec.model)
    try:
        for generation, slots in ((1, 2), (2, 5)):
            action = lease("chat", RankPlacement("n1", (0,)), kind="replica", generation=generation)
            made = launcher.prepare(action)
            assert made.launch.commands[0][made.launch.commands[0].index("--max-num-seqs") + 1] == str(slots)
            assert made.endpoint is not None
            assert made.endpoint.url.endswith("/v1")
            assert made.launch.ready_url.startswith("http://127.0.0.1:")
    finally:
        patched.undo()


def test_a_lease_without_a_spec_is_a_bug(tmp_path: Path, database: Database) -> None:
    with pytest.raises(InvariantError, match="no JobSpec is stored"):
        launch.LocalLauncher(tmp_path, database).prepare(lease("gone", RankPlacement("n1", (0,))))


@pytest.mark.parametrize(
    ("gang", "field"),
    [
        (ev.Gang(1, 5, 1), "devices_per_rank"),
        (ev.Gang(1, 1, 101), "memory_per_rank"),
        (ev.Gang(5, 1, 1), "ranks"),
        (ev.Gang(3, 1, 40), "ranks"),
        (ev.Gang(2, 3, 1), "ranks"),
    ],
)
def test_gangs_that_never_fit(gang: ev.Gang, field: str) -> None:
    core = core_with(("n1", 4, 100))
    with pytest.raises(InputError) as caught:
        launch.check_gang(gang, core)
    assert caught.value.field == field


@pytest.mark.parametrize("gang", [ev.Gang(4, 1, 25), ev.Gang(1, 4, 100), ev.Gang(2, 2, 50), ev.Gang(4, 1, 0)])
def test_gangs_that_fit_exactly(gang: ev.Gang) -> None:
    launch.check_gang(gang, core_with(("n1", 4, 100)))


def test_commands_are_found_on_the_path_of_the_job(tmp_path: Path) -> None:
    program = tmp_path / "mine"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    core = core_with(("n1", 4, 8 << 30))
    launch.check_job(JobSpec(name="a", command=("mine",), env={"PATH": str(tmp_path)}), tmp_path, core)
    with pytest.raises(InputError, match="no such program"):
        launch.check_job(JobSpec(name="a", command=("mine",)), tmp_path, core)
