"""From the command line: a packaged model registered, deployed, asked through the gateway, and metered."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import pytest
from gateway_rig import free_port
from test_registry import gguf

pytestmark = pytest.mark.real

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Runs a command of `groundplane` with this test's state folder, and takes the platform down at last."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GROUNDPLANE_")}
    env["GROUNDPLANE_STATE"] = str(tmp_path / "state")

    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        whole = [sys.executable, "-c", "from groundplane.cli.main import main; main()", *arguments]
        return subprocess.run(whole, capture_output=True, text=True, timeout=90, env=env, check=False)

    yield command
    command("down")


def test_models_and_usage(run: Run, tmp_path: Path) -> None:
    nothing = run("models")
    assert (nothing.returncode, "no platform is up" in nothing.stderr) == (2, True)
    gateway_port = free_port()
    up = run("up", "--port", str(free_port()), "--gateway-port", str(gateway_port))
    assert up.returncode == 0, up.stderr
    assert "No models yet" in run("models").stdout

    smol = json.loads(run("models", "register", "smollm2-135m-instruct", "--json").stdout)
    assert (smol["version"], smol["architecture"]) == (1, "llama")
    file = tmp_path / "mine.gguf"
    file.write_bytes(gguf())
    mine = run(
        "models", "register", "mine", str(file), "--job", "job-1", "--step", "40", "--data", "d1", "--json"
    )
    version = json.loads(mine.stdout)
    assert (version["job_id"], version["checkpoint_step"], version["data_id"]) == ("job-1", 40, "d1")
    listed = json.loads(run("models", "list", "--json").stdout)
    assert [one["name"] for one in listed] == ["mine", "smollm2-135m-instruct"]
    assert smol["sha256"] in run("models", "show", "smollm2-135m-instruct:1").stdout

    typo = run("models", "show", "smollm2-135m-instuct")
    assert typo.returncode == 2
    assert typo.stderr.count("\n") == 1
    assert "did you mean 'smollm2-135m-instruct'" in typo.stderr
    missing = run("models", "register", "other", str(tmp_path / "none.gguf"))
    assert (missing.returncode, "No such file" in missing.stderr) == (2, True)

    service = tmp_path / "service.yaml"
    service.write_text("kind: service\nname: smol\nmodel: smollm2-135m-instruct\ncontext: 512\nslots: 2\n")
    deployed = run("deploy", str(service))
    assert deployed.returncode == 0, deployed.stderr
    key = (tmp_path / "state" / "admin.key").read_text().strip()

    def why() -> str:
        """What there is to see when no answer comes."""
        logs = [path for path in (tmp_path / "state").rglob("*.log") if "metering" not in path.parts]
        told = [f"--- {path.name}\n{path.read_text(errors='replace')[-1500:]}" for path in sorted(logs)]
        return "\n".join([run("services", "--json").stdout, *told])

    ask_until_ready(f"http://127.0.0.1:{gateway_port}/v1", key, why)

    deadline = time.monotonic() + 20
    while not (sums := json.loads(run("usage", "--by", "model", "--json").stdout)["requests"]):
        assert time.monotonic() < deadline
    (one,) = sums
    assert (one["model"], one["num_requests"], one["num_partial"], one["tokens_out"]) == ("smol", 1, 0, 8)
    (row,) = csv.DictReader(io.StringIO(run("usage", "--by", "day", "--csv").stdout))
    assert int(row["tokens_out"]) == 8
    text = run("usage").stdout
    assert "default" in text
    assert "Device-seconds of" in text


def ask_until_ready(base_url: str, key: str, why: Callable[[], str]) -> None:
    """One answer of eight tokens, as soon as a replica is ready."""
    deadline = time.monotonic() + 120
    with openai.OpenAI(base_url=base_url, api_key=key, max_retries=0) as client:
        while True:
            try:
                answer = client.chat.completions.create(
                    model="smol",
                    max_tokens=8,
                    messages=[{"role": "user", "content": "Count to one hundred."}],
                )
            except (openai.InternalServerError, openai.NotFoundError) as error:
                if time.monotonic() > deadline:
                    pytest.fail(f"no answer: {error}\n{why()}")
                time.sleep(0.1)
                continue
            assert answer.usage is not None
            assert answer.usage.completion_tokens == 8
            return
