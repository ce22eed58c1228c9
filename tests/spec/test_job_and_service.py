"""Job and service files: what is accepted, what is refused and how."""

from __future__ import annotations

from typing import Any

import pytest

from groundplane.spec.errors import InputError
from groundplane.spec.job import JobSpec
from groundplane.spec.load import from_data
from groundplane.spec.service import ServiceSpec

JOB: dict[str, Any] = {"kind": "job", "name": "j", "command": ["true"]}
TRAIN: dict[str, Any] = {
    "kind": "job",
    "name": "t",
    "ranks": 2,
    "train": {"global_batch": 16, "micro_batch": 4},
}
SERVICE: dict[str, Any] = {"kind": "service", "name": "s", "model": "m.gguf"}


def test_a_command_job_has_sensible_defaults() -> None:
    job = from_data(JOB, JobSpec)
    assert (job.ranks, job.queue, job.restart.budget, job.time_limit_s) == (1, "default", 5, None)


def test_quantities_of_a_job() -> None:
    job = from_data(
        {**JOB, "memory_per_rank": "2 GiB", "time_limit": "1 h", "restart": {"backoff": "250ms"}}, JobSpec
    )
    assert (job.memory_per_rank_bytes, job.time_limit_s, job.restart.backoff_s) == (2**31, 3600.0, 0.25)


def test_sizes_of_a_job_are_the_divisors_of_its_ranks() -> None:
    assert from_data({**JOB, "ranks": 12, "min_ranks": 3}, JobSpec).sizes == (3, 4, 6, 12)
    assert from_data({**JOB, "ranks": 8, "min_ranks": 8}, JobSpec).sizes == (8,)
    assert from_data({**JOB, "ranks": 8}, JobSpec).sizes == (8,)


def test_what_a_job_waits_for() -> None:
    more = {"after": ["a-1", "b-2"], "group": "sweep", "group_limit": 4, "deadline": "2 h"}
    job = from_data({**JOB, **more}, JobSpec)
    assert (job.after, job.group, job.group_limit, job.deadline_s) == (("a-1", "b-2"), "sweep", 4, 7200.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ranks": 2, "min_ranks": 3}, "min_ranks: must be at most 2, got 3"),
        ({"ranks": 10**12, "min_ranks": 1}, "ranks: must be at most 65536 with min_ranks"),
        ({"group_limit": 2}, "group_limit: needs a group"),
        ({"deadline": "0 s"}, "deadline: must be more than 0"),
        ({"command": []}, "command: exactly one of command and train must be given"),
        ({"train": {}}, "command: exactly one of command and train must be given"),
        ({"ranks": 0}, "ranks: must be a whole number >= 1, got 0"),
        ({"name": "Bad Name"}, "name: must be lower-case letters"),
        ({"priority": 5000}, "priority: must be a whole number <= 1000, got 5000"),
        ({"rank": 2}, "rank: unknown field; did you mean 'ranks'?"),
        ({"memory_per_rank": "2 Gb/s"}, "memory_per_rank: must be a size"),
        ({"restart": {"budget": -1}}, "restart.budget: must be a whole number >= 0, got -1"),
        ({"kind": "service"}, "kind: must be job, got 'service'"),
    ],
)
def test_bad_jobs(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        from_data({**JOB, **change}, JobSpec)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"global_batch": 12},
            "train.global_batch: must be divisible by micro_batch x ranks (4 x 2), got 12",
        ),
        ({"model": {"hidden": 250}}, "train.model.hidden: must be divisible by heads, got 250"),
        ({"model": {"kv_heads": 3}}, "train.model.kv_heads: must divide heads, got 3"),
        ({"model": {"vocab": 100}}, "train.model.vocab: must be a whole number >= 261, got 100"),
        ({"precision": "fp8"}, "train.precision: must be one of bf16, fp32, got 'fp8'"),
        ({"learning_rate": 0.0}, "train.learning_rate: must be a number > 0.0, got 0.0"),
    ],
)
def test_bad_training(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        from_data({**TRAIN, "train": {**TRAIN["train"], **change}}, JobSpec)
    assert str(caught.value).startswith(message)


def test_a_service() -> None:
    service = from_data({**SERVICE, "drain": "10s"}, ServiceSpec)
    assert (service.server, service.replicas, service.drain_s) == ("llamacpp", 1, 10.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"server": "openai"}, "url: is required when server is openai"),
        ({"model": ""}, "model: is required when server is llamacpp"),
        (
            {"server": "llama"},
            "server: must be one of llamacpp, openai, vllm, got 'llama'; did you mean 'llamacpp'?",
        ),
        ({"replicas": -1}, "replicas: must be a whole number >= 0, got -1"),
        ({"contex": 5}, "contex: unknown field; did you mean 'context'?"),
    ],
)
def test_bad_services(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        from_data({**SERVICE, **change}, ServiceSpec)
    assert str(caught.value).startswith(message)
