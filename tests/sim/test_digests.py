"""The same seed gives the same digest under any hash seed, and on every Python that is supported.

Other interpreters are those that GROUNDPLANE_PYTHONS names (paths, as PATH has them), those of pyenv, and
python3.11 to python3.13 on the PATH, as far as they have the few packages that the simulator needs. The one
that runs the tests is always among them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import groundplane
from groundplane.control.core import ControlCore
from groundplane.control.journal import encode_record
from groundplane.control.replay import replay
from groundplane.sim.fuzz import journal_of_seed

SUPPORTED = ("3.11", "3.12", "3.13")
SOURCE = Path(groundplane.__file__).resolve().parents[1]
PROGRAM = """
import hashlib, json, sys
from groundplane.control.policy import policy_event
from groundplane.sim.cluster import World, run_world
from groundplane.sim.faults import FaultRates
from groundplane.sim.fuzz import run_seed
from groundplane.sim.physics import PlacedPhysics
from groundplane.sim.site import equal_site
from groundplane.sim.workload import generate
from groundplane.spec.policy import named_policy

digests = [run_seed(seed).digest for seed in range(40)]
site = equal_site(8, 8, nodes_per_leaf=2, leaves_per_spine=2)
jobs = generate(num_jobs=150, load=0.9, num_nodes=8, devices_per_node=8, seed=7)
for name in ("default", "fair-share"):
    policy = policy_event(named_policy(name, ["default"]))
    world = World(site, PlacedPhysics(site), policy, FaultRates().scaled(50), seed=7, keeps_journal=True)
    run = run_world(world, jobs)
    digests += [run.core.digest(), hashlib.sha256(b"".join(run.journal)).hexdigest()]
print(json.dumps(digests))
"""


def interpreters() -> list[str]:
    named = [path for path in os.environ.get("GROUNDPLANE_PYTHONS", "").split(os.pathsep) if path]
    found = [shutil.which(f"python{version}") for version in SUPPORTED]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found += [str(path) for path in sorted(pyenv.glob("3.1[123].*/bin/python"))]
    probe = "import msgspec, numpy, yaml, sys; print('%d.%d' % sys.version_info[:2])"
    able = [sys.executable]
    for path in [*named, *(path for path in found if path)]:
        result = subprocess.run([path, "-c", probe], capture_output=True, text=True, check=False)
        if path in named and result.returncode:
            pytest.fail(f"{path} lacks a package: {result.stderr.splitlines()[-1]}")
        if not result.returncode and result.stdout.strip() in SUPPORTED and path not in able:
            able.append(path)
    return able


def digests(python: str, hash_seed: int) -> list[str]:
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": str(SOURCE)}
    result = subprocess.run(
        [python, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert result.returncode == 0, result.stderr
    found: list[str] = json.loads(result.stdout)
    return found


def test_digests_are_the_same_under_two_hash_seeds_and_on_every_python() -> None:
    expected = digests(sys.executable, 1)
    assert len(set(expected)) == len(expected) == 44
    assert digests(sys.executable, 2) == expected
    for number, python in enumerate(interpreters()[1:]):
        assert digests(python, 3 + number) == expected, python


def test_a_replay_gives_the_digest_of_the_run() -> None:
    """From the records' bytes, and again after a snapshot in the middle."""
    records = journal_of_seed(17)
    core = ControlCore()
    for record in records:
        if record.seq == len(records) // 2:
            core = ControlCore.restore(core.snapshot())
        assert tuple(core.handle(record.now_ns, record.event)) == record.actions
    report = replay(records)
    assert (report.digest, report.divergence) == (core.digest(), None)
    assert all(encode_record(record) for record in records)
