"""What every engine must do. A test module of an engine subclasses `EngineContract` and gives one fixture:

    class TestMyEngine(EngineContract):
        @pytest.fixture
        def make_harness(self, ...): ...   # a function that makes a Harness over the same state each time

Commands are absolute paths of programs that every Linux machine has, or this Python.
"""

from __future__ import annotations

import http.server
import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from engine_harness import Harness, left_behind, python, shell

_FOREVER = "while :; do sleep 0.05; done"


class EngineContract:
    """Started once, ended with proof, reported in one order that a restart repeats."""

    @pytest.fixture
    def harness(self, make_harness: Callable[[], Harness]) -> Iterator[Harness]:
        harness = make_harness()
        yield harness
        for work_id, fence in {(report.work_id, report.fence) for report in harness.reports}:
            if not any(report.what == "gone" for report in harness.of(work_id, fence)):
                harness.stop(work_id, fence, 0.0)
                harness.wait_for(work_id, "gone", fence)
        harness.close()

    def test_offers_devices_and_memory(self, harness: Harness) -> None:
        assert harness.offers
        assert len({offer.node_id for offer in harness.offers}) == len(harness.offers)
        assert all(offer.num_devices > 0 and offer.memory_bytes > 2**20 for offer in harness.offers)

    def test_success_is_started_then_gone(self, harness: Harness) -> None:
        harness.start(
            harness.launch("w.a1", shell("echo from rank 0"), shell('echo "$WORD"'), env={"WORD": "word 1"})
        )
        gone = harness.wait_for("w.a1", "gone")
        assert harness.whats("w.a1") == ["started", "gone"]
        assert (gone.outcome, gone.exit_code, gone.fence) == ("succeeded", 0, 1)
        assert harness.engine.log_path("w.a1", 0).read_text() == "from rank 0\n"
        assert harness.engine.log_path("w.a1", 1).read_text() == "word 1\n"
        assert left_behind(harness.tag) == []

    def test_first_failing_rank_ends_all_and_is_named(self, harness: Harness) -> None:
        harness.start(harness.launch("w.a1", shell(_FOREVER), shell("echo the reason; exit 7")))
        gone = harness.wait_for("w.a1", "gone")
        assert (gone.outcome, gone.exit_code) == ("failed", 7)
        assert "rank 1" in gone.detail
        assert "the reason" in gone.detail
        assert left_behind(harness.tag) == []

    def test_killed_rank_is_named_with_its_signal(self, harness: Harness) -> None:
        harness.start(harness.launch("w.a1", shell("kill -KILL $$"), shell(_FOREVER)))
        gone = harness.wait_for("w.a1", "gone")
        assert (gone.outcome, gone.exit_code) == ("failed", -9)
        assert "SIGKILL" in gone.detail

    def test_program_that_does_not_exist_starts_nothing(self, harness: Harness, tmp_path: Path) -> None:
        ran = tmp_path / "ran"
        harness.start(
            harness.launch("w.a1", shell(f"echo > '{ran}'; {_FOREVER}"), ("no-such-program-here", "x"))
        )
        gone = harness.wait_for("w.a1", "gone")
        assert harness.whats("w.a1") == ["gone"]
        assert gone.outcome == "start_failed"
        assert "no-such-program-here" in gone.detail
        assert not ran.exists()

    def test_same_id_and_fence_starts_once(self, harness: Harness, tmp_path: Path) -> None:
        count = tmp_path / "count"
        launch = harness.launch("w.a1", shell(f"echo x >> '{count}'"))
        for _ in range(3):
            harness.start(launch)
        harness.wait_for("w.a1", "gone")
        harness.start(launch)
        harness.wait(lambda: count.read_text() == "x\n")
        assert len({(report.position, report.what) for report in harness.of("w.a1")}) == 2

    def test_older_fence_is_refused(self, harness: Harness, tmp_path: Path) -> None:
        ran = tmp_path / "ran"
        harness.start(harness.launch("w.a1", shell(_FOREVER), fence=5))
        harness.wait_for("w.a1", "started", 5)
        harness.start(harness.launch("w.a1", shell(f"echo > '{ran}'"), fence=4))
        refused = harness.wait_for("w.a1", "gone", 4)
        assert refused.outcome == "start_failed"
        assert "older" in refused.detail
        assert not ran.exists()
        assert harness.whats("w.a1") == ["started", "gone"]

    def test_stop_ends_what_ignores_sigterm(self, harness: Harness) -> None:
        harness.start(harness.launch("w.a1", shell(f"trap '' TERM; echo up; {_FOREVER}"), shell(_FOREVER)))
        harness.wait_for("w.a1", "started")
        log = harness.engine.log_path("w.a1", 0)
        harness.wait(lambda: log.exists() and log.read_text() == "up\n")
        harness.stop("w.a1", grace_s=0.1)
        gone = harness.wait_for("w.a1", "gone")
        assert gone.outcome == "stopped"
        assert left_behind(harness.tag) == []

    def test_stop_lets_a_rank_end_well(self, harness: Harness) -> None:
        harness.start(harness.launch("w.a1", shell(f"trap 'echo saved; exit 0' TERM; echo up; {_FOREVER}")))
        log = harness.engine.log_path("w.a1", 0)
        harness.wait(lambda: log.exists() and log.read_text() == "up\n")
        harness.stop("w.a1", grace_s=30.0)
        assert harness.wait_for("w.a1", "gone").outcome == "stopped"
        assert "saved" in log.read_text()

    def test_stop_right_after_start(self, harness: Harness) -> None:
        for number in range(3):
            harness.start(harness.launch(f"w.a{number}", shell(_FOREVER)))
            harness.stop(f"w.a{number}", grace_s=1.0)
        for number in range(3):
            assert harness.wait_for(f"w.a{number}", "gone").outcome == "stopped"
        assert left_behind(harness.tag) == []

    def test_stop_twice_and_after_the_end(self, harness: Harness) -> None:
        harness.start(harness.launch("w.a1", shell(_FOREVER)))
        harness.wait_for("w.a1", "started")
        harness.stop("w.a1", grace_s=20.0)
        harness.stop("w.a1", grace_s=0.0)
        first = harness.wait_for("w.a1", "gone")
        harness.stop("w.a1")
        harness.wait(lambda: harness.whats("w.a1").count("gone") == 2)
        assert harness.of("w.a1")[-1] == first

    def test_unknown_work_is_gone_and_a_late_start_does_nothing(
        self, harness: Harness, tmp_path: Path
    ) -> None:
        ran = tmp_path / "ran"
        harness.stop("w.a1", fence=3)
        assert harness.wait_for("w.a1", "gone").outcome == "stopped"
        harness.start(harness.launch("w.a1", shell(f"echo > '{ran}'"), fence=3))
        harness.wait(lambda: harness.whats("w.a1") == ["gone", "gone"])
        assert len(set(harness.of("w.a1"))) == 1
        assert not ran.exists()

    def test_progress_gives_ready_and_checkpoints(self, harness: Harness) -> None:
        lines = r'{"step": 1, "loss": 2.5}\n{"step": 2}\n{"checkpoint": 2}\nword\n{"checkpoint": 3}\n{"torn'
        harness.start(
            harness.launch("w.a1", shell(f"printf '{lines}' >> \"$GROUNDPLANE_WORK_DIR/progress.jsonl\""))
        )
        harness.wait_for("w.a1", "gone")
        assert harness.whats("w.a1") == ["started", "ready", "checkpoint", "checkpoint", "gone"]
        assert [report.step for report in harness.of("w.a1")] == [0, 0, 2, 3, 0]

    def test_replica_is_ready_unready_and_ready_again(self, harness: Harness) -> None:
        answer = {"status": 503}

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(answer["status"])
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_address[1]}/health"
            harness.start(harness.launch("s.r1", shell(_FOREVER), kind="replica", ready_url=url))
            harness.wait_for("s.r1", "started")
            answer["status"] = 200
            harness.wait_for("s.r1", "ready")
            answer["status"] = 500
            harness.wait_for("s.r1", "unready")
            answer["status"] = 200
            harness.wait(lambda: harness.whats("s.r1") == ["started", "ready", "unready", "ready"])
            harness.stop("s.r1", grace_s=1.0)
            harness.wait_for("s.r1", "gone")
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def test_reattach_repeats_the_reports_and_goes_on(
        self, make_harness: Callable[[], Harness], tmp_path: Path
    ) -> None:
        go = tmp_path / "go"
        first = make_harness()
        source = f"""echo '{{"step": 1}}' >> "$GROUNDPLANE_WORK_DIR/progress.jsonl"
            until test -e '{go}'; do sleep 0.02; done
            echo '{{"checkpoint": 9}}' >> "$GROUNDPLANE_WORK_DIR/progress.jsonl"; exit 4"""
        first.start(first.launch("w.a1", shell(source), fence=2))
        first.wait_for("w.a1", "ready")
        first.close()
        go.touch()
        second = make_harness()
        second.reattach("w.a1", 2)
        gone = second.wait_for("w.a1", "gone")
        second.close()
        assert second.of("w.a1")[: len(first.reports)] == first.reports
        assert second.whats("w.a1") == ["started", "ready", "checkpoint", "gone"]
        assert (gone.outcome, gone.exit_code) == ("failed", 4)
        third = make_harness()
        third.reattach("w.a1", 2)
        third.wait_for("w.a1", "gone")
        third.close()
        assert third.reports == second.reports

    def test_reattach_again_only_repeats(self, harness: Harness) -> None:
        harness.start(harness.launch("w.a1", shell(_FOREVER)))
        harness.wait_for("w.a1", "started")
        for _ in range(2):
            harness.reattach("w.a1")
        harness.wait(lambda: harness.whats("w.a1") == ["started"] * 3)
        harness.stop("w.a1", grace_s=1.0)
        harness.wait_for("w.a1", "gone")
        harness.reattach("w.a1")
        harness.wait(lambda: harness.whats("w.a1")[3:] == ["gone", "started", "gone"])
        assert len(set(harness.of("w.a1"))) == 2

    def test_reattach_of_what_never_started_waits_for_a_start(self, harness: Harness) -> None:
        harness.reattach("w.a1")
        harness.start(harness.launch("w.a1", shell("exit 0")))
        harness.wait_for("w.a1", "gone")
        assert harness.whats("w.a1") == ["started", "gone"]

    def test_start_repeated_by_the_next_control_plane(
        self, make_harness: Callable[[], Harness], tmp_path: Path
    ) -> None:
        count = tmp_path / "count"
        first = make_harness()
        launch = first.launch("w.a1", shell(f"echo x >> '{count}'; {_FOREVER}"))
        first.start(launch)
        first.close()
        second = make_harness()
        second.start(launch)
        second.wait_for("w.a1", "started")
        second.wait(count.exists)
        second.stop("w.a1", grace_s=1.0)
        second.wait_for("w.a1", "gone")
        second.close()
        assert count.read_text() == "x\n"

    def test_positions_rise_and_works_do_not_mix(self, harness: Harness) -> None:
        for number in range(4):
            harness.start(harness.launch(f"w{number}.a1", shell(f"echo {number}; exit {number}")))
        for number in range(4):
            gone = harness.wait_for(f"w{number}.a1", "gone")
            assert gone.exit_code == number
            assert harness.engine.log_path(f"w{number}.a1", 0).read_text() == f"{number}\n"
            positions = [report.position for report in harness.of(f"w{number}.a1")]
            assert all(low < high for low, high in itertools.pairwise(positions))

    def test_daemons_of_a_work_are_ended_with_it(self, harness: Harness) -> None:
        daemonize = (
            "import os, time\n"
            "if os.fork() == 0:\n"
            "    os.setsid()\n"
            "    if os.fork() == 0:\n"
            "        print('daemon', flush=True)\n"
            "        time.sleep(1000)\n"
            "    os._exit(0)\n"
            "os.wait()\n"
        )
        harness.start(harness.launch("w.a1", python(daemonize)))
        assert harness.wait_for("w.a1", "gone").outcome == "succeeded"
        assert left_behind(harness.tag) == []
