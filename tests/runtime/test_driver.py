"""The driver: what is acknowledged is durable, restarts lose and repeat nothing, failures end it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from runtime_fakes import FakeEngine, FakeLauncher, World

from groundplane.control import events as ev
from groundplane.control.core import ControlCore
from groundplane.platform.runtime import driver as driver_module
from groundplane.platform.runtime import store, tables
from groundplane.platform.runtime.database import Database, StorageError
from groundplane.platform.runtime.driver import Busy, Driver
from groundplane.spec.errors import InputError

Body = Callable[[], Coroutine[Any, Any, None]]


def job(job_id: str, *, ranks: int = 1, budget: int = 2, limit_ns: int = 0) -> ev.JobSubmitted:
    return ev.JobSubmitted(
        job_id=job_id,
        name=job_id,
        queue="default",
        priority=0,
        gang=ev.Gang(num_ranks=ranks, devices_per_rank=1, memory_bytes_per_rank=1 << 20),
        restart=ev.RestartPolicy(budget=budget, backoff_ns=1_000_000, backoff_limit_ns=1_000_000),
        stop_grace_ns=0,
        time_limit_ns=limit_ns,
    )


@asynccontextmanager
async def opened(
    database: Database, world: World, *, snapshot_every: int = 1000
) -> AsyncIterator[tuple[Driver, FakeEngine, FakeLauncher]]:
    engine, launcher = FakeEngine(world), FakeLauncher()
    driver = Driver(database, engine, launcher, snapshot_every=snapshot_every)
    try:
        await driver.open()
        yield driver, engine, launcher
    finally:
        await driver.close()


async def crash(driver: Driver, engine: FakeEngine) -> None:
    """Ends a driver as a kill -9 does, as far as durable state goes: no snapshot, nothing finished."""
    for task in driver._tasks:
        task.cancel()
    await asyncio.gather(*driver._tasks, return_exceptions=True)
    driver._tasks = []
    await engine.close()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.001)


def journalled(database: Database) -> list[ev.AnyEvent]:
    return [record.event for record in store.records(database)]


def test_a_job_runs_and_what_it_did_is_in_sql(database: Database) -> None:
    async def body() -> None:
        world = World()
        async with opened(database, world) as (driver, engine, _):
            row = {"job_id": "a", "name": "a", "spec": "{}", "submitted_ns": 1}
            await driver.handle(job("a"), lambda connection: connection.execute(tables.jobs.insert(), row))
            assert ev.JobSubmitted in {type(event) for event in journalled(database)}
            await until(lambda: world.starts == [("a.a1", 1)])
            engine.tell("a.a1", "checkpoint", step=7)
            engine.tell("a.a1", "gone", outcome="succeeded")
            await until(lambda: driver.core.state.jobs["a"].state == "succeeded")
        with database.reading() as connection:
            work = connection.execute(sa.select(tables.works)).mappings().one()
            ended = connection.execute(sa.select(tables.jobs)).mappings().one()
        assert (work["work_id"], work["outcome"], work["checkpoint_step"]) == ("a.a1", "succeeded", 7)
        assert work["leased_ns"] <= work["started_ns"] <= work["gone_ns"] == ended["ended_ns"]
        assert ended["outcome"] == "succeeded"

    asyncio.run(body())


def test_replay_gives_the_same_state_with_and_without_a_snapshot(database: Database) -> None:
    async def body() -> None:
        world = World()
        async with opened(database, world, snapshot_every=3) as (driver, engine, _):
            for index in range(6):
                await driver.handle(job(f"j{index}"))
            await until(lambda: len(world.starts) == 2)
            engine.tell("j0.a1", "gone", outcome="failed", exit_code=3)
            await until(lambda: len(world.starts) == 3)
            await until(lambda: all(work.state == "running" for work in driver.core.state.works.values()))
            before = driver.core.digest()
        snapshot = store.newest_snapshot(database)
        assert snapshot is not None
        replayed = ControlCore()
        for record in store.records(database):
            assert tuple(replayed.handle(record.now_ns, record.event)) == record.actions
        assert replayed.digest() == before
        async with opened(database, world) as (driver, engine, _):
            assert driver.core.digest() == before
            assert len(world.starts) == 3

    asyncio.run(body())


def test_reports_of_an_earlier_life_are_taken_once(database: Database) -> None:
    async def body() -> None:
        world = World()
        async with opened(database, world) as (driver, engine, _):
            await driver.handle(job("a"))
            await until(lambda: world.starts)
            engine.tell("a.a1", "checkpoint", step=1)
            await until(lambda: driver.core.state.works["a.a1"].checkpoint_step == 1)
            engine.deaf = True
            engine.tell("a.a1", "checkpoint", step=2)
            engine.tell("a.a1", "gone", outcome="succeeded")
            await crash(driver, engine)
        async with opened(database, world) as (driver, engine, _):
            await until(lambda: driver.core.state.jobs["a"].state == "succeeded")
            assert driver.core.state.jobs["a"].checkpoint_step == 2
        kinds = [type(event).__name__ for event in journalled(database)]
        assert kinds.count("WorkStarted") == 1
        assert kinds.count("CheckpointCommitted") == 2
        assert kinds.count("WorkGone") == 1
        assert world.starts == [("a.a1", 1)]

    asyncio.run(body())


def test_a_start_that_was_decided_but_not_carried_out_happens_after_the_restart(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        world = World()
        async with opened(database, world) as (driver, engine, _):
            with monkeypatch.context() as patch:
                patch.setattr(driver, "_dispatch", lambda action: None)
                await driver.handle(job("a"))
                await crash(driver, engine)
        assert world.starts == []
        async with opened(database, world) as (driver, engine, _):
            await until(lambda: world.starts == [("a.a1", 1)])

    asyncio.run(body())


def test_a_stop_that_was_decided_but_not_carried_out_happens_after_the_restart(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        world = World()
        async with opened(database, world) as (driver, engine, _):
            await driver.handle(job("a"))
            await until(lambda: world.starts)
            with monkeypatch.context() as patch:
                patch.setattr(driver, "_dispatch", lambda action: None)
                await driver.handle(ev.JobCancelRequested(job_id="a"))
                await crash(driver, engine)
        async with opened(database, world) as (driver, engine, _):
            await until(lambda: driver.core.state.jobs["a"].state == "cancelled")
            assert world.starts == [("a.a1", 1)]

    asyncio.run(body())


def test_timers_survive_a_restart(database: Database) -> None:
    async def body() -> None:
        world = World()
        async with opened(database, world) as (driver, engine, _):
            await driver.handle(job("a", limit_ns=50_000_000))
            await crash(driver, engine)
        async with opened(database, world) as (driver, engine, _):
            await until(lambda: driver.core.state.jobs["a"].state == "failed")
            assert store.pending_timers(database) == {}

    asyncio.run(body())


@pytest.mark.parametrize("error", [InputError("no such model"), OSError("no space left")])
def test_what_cannot_be_prepared_is_said_to_be_gone(database: Database, error: Exception) -> None:
    async def body() -> None:
        world = World()
        async with opened(database, world) as (driver, _, launcher):
            launcher.refuse_with = error
            await driver.handle(job("a", budget=1))
            await until(lambda: driver.core.state.jobs["a"].state == "failed")
            assert str(error) in driver.core.state.jobs["a"].reason
            assert world.starts == []

    asyncio.run(body())


def test_a_start_that_fails_half_way_is_stopped_with_proof(database: Database) -> None:
    async def body() -> None:
        world = World()
        async with opened(database, world) as (driver, engine, _):
            engine.broken = True
            await driver.handle(job("a", budget=0))
            await until(lambda: driver.core.state.jobs["a"].state == "failed")
            assert world.stops == [("a.a1", 1)]

    asyncio.run(body())


def test_a_full_queue_refuses(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        async with opened(database, World()) as (driver, _, __):
            monkeypatch.setattr(driver_module, "MAX_QUEUED_EVENTS", 3)
            results = await asyncio.gather(
                *(driver.handle(job(f"j{index}")) for index in range(5)), return_exceptions=True
            )
            assert [type(result) for result in results[3:]] == [Busy, Busy]
            assert len(driver.core.state.jobs) == 3

    asyncio.run(body())


def test_what_cannot_be_written_is_not_acknowledged_and_ends_the_driver(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        world = World()
        async with opened(database, world) as (driver, _, __):
            before = len(journalled(database))

            def full(*_arguments: object) -> None:
                raise StorageError("database or disk is full")

            monkeypatch.setattr(store, "append", full)
            with pytest.raises(StorageError, match="disk is full"):
                await driver.handle(job("a"))
            await until(driver.failure.done)
            with pytest.raises(StorageError):
                await driver.handle(job("b"))
            with pytest.raises(StorageError):
                driver.failure.result()
            assert len(journalled(database)) == before
            assert world.starts == []

    asyncio.run(body())


def test_a_changed_machine_is_refused(database: Database) -> None:
    async def body() -> None:
        async with opened(database, World(num_devices=2)):
            pass
        with pytest.raises(InputError, match="must stay as it was"):
            async with opened(database, World(num_devices=3)):
                pass

    asyncio.run(body())


@pytest.mark.parametrize("seed", range(8))
def test_crashes_at_any_point_lose_and_repeat_nothing(tmp_path: Any, seed: int) -> None:
    """Jobs are submitted, works end, and the driver is killed, all at random; then the world heals."""
    rng = random.Random(seed)
    world = World(num_devices=3)
    database = Database(f"sqlite:///{tmp_path / 'groundplane.db'}", migrate=True)
    acknowledged: list[str] = []

    async def submit(driver: Driver, job_id: str) -> None:
        await driver.handle(job(job_id, ranks=rng.choice([1, 1, 2]), budget=100))
        acknowledged.append(job_id)

    async def life(number: int) -> None:
        async with opened(database, world, snapshot_every=rng.choice([2, 7, 1000])) as (driver, engine, _):
            engine.deaf = rng.random() < 0.2
            tasks = [asyncio.create_task(submit(driver, f"j{number}-{index}")) for index in range(6)]
            for _step in range(rng.randrange(40)):
                await asyncio.sleep(0)
                living = [work_id for work_id, _ in world.starts if not world.is_gone(work_id)]
                if living and rng.random() < 0.3:
                    engine.tell(rng.choice(living), "gone", outcome=rng.choice(["succeeded", "failed"]))
            await asyncio.sleep(rng.random() * 0.02)
            await crash(driver, engine)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def heal() -> None:
        async with opened(database, world) as (driver, engine, _):
            async with asyncio.timeout(60):
                while any(
                    each.state not in {"succeeded", "failed"} for each in driver.core.state.jobs.values()
                ):
                    for work_id, _fence in list(world.starts):
                        if not world.is_gone(work_id):
                            engine.tell(work_id, "gone", outcome="succeeded")
                    await asyncio.sleep(0.002)
            assert set(acknowledged) <= set(driver.core.state.jobs)
            assert all(each.state == "succeeded" for each in driver.core.state.jobs.values())

    for number in range(5):
        asyncio.run(life(number))
    asyncio.run(heal())
    assert len(set(world.starts)) == len(world.starts), f"started twice (seed {seed})"
    core = ControlCore()
    for record in store.records(database):
        assert tuple(core.handle(record.now_ns, record.event)) == record.actions
    with database.reading() as connection:
        alive = connection.scalar(
            sa.select(sa.func.count()).select_from(tables.works).where(tables.works.c.gone_ns.is_(None))
        )
    assert alive == 0
    database.close()
