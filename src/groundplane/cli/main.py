"""The `groundplane` command: finds the command group, turns errors into one line and an exit code.

Groups are imported when they are called, so that `groundplane --help` stays quick.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
import traceback
from typing import Any, NoReturn

import click

from groundplane import __version__
from groundplane.spec.errors import GroundplaneError, InputError, InvariantError, unknown_name

COMMANDS = {
    "probe": ("groundplane.cli.probe", "Measure this machine and write its cluster file."),
    "plan": ("groundplane.cli.plan", "Predict time, memory and bottleneck before anything runs."),
    "simulate": (
        "groundplane.cli.simulate",
        "Run the control core over a described cluster on simulated time.",
    ),
    "what-if": ("groundplane.cli.what_if", "What if nodes go down, a quota changes, a job comes."),
    "fuzz": ("groundplane.cli.fuzz", "Search for seeds that break the control core."),
    "replay": ("groundplane.cli.replay", "Replay a journal and compare every action."),
    "up": ("groundplane.cli.platform", "Start the platform on this machine."),
    "down": ("groundplane.cli.platform", "Stop the platform and all it runs."),
    "status": ("groundplane.cli.platform", "Show nodes, jobs, services and leases."),
    "nodes": ("groundplane.cli.nodes", "List nodes and their health."),
    "cordon": ("groundplane.cli.nodes", "Keep new work away from a node."),
    "uncordon": ("groundplane.cli.nodes", "Let a node take work again."),
    "drain": ("groundplane.cli.nodes", "Empty a node, at checkpoints where jobs have them."),
    "policy": ("groundplane.cli.policy", "Show or set queues, quotas and rules."),
    "window": ("groundplane.cli.windows", "Set nodes aside for maintenance or one queue."),
    "submit": ("groundplane.cli.jobs", "Submit a job file."),
    "jobs": ("groundplane.cli.jobs", "List jobs."),
    "logs": ("groundplane.cli.jobs", "Print a job's or a replica's output."),
    "cancel": ("groundplane.cli.jobs", "Cancel a job."),
    "explain": ("groundplane.cli.jobs", "Say why a job waits, or where its time went."),
    "models": ("groundplane.cli.serving", "List and register models."),
    "deploy": ("groundplane.cli.serving", "Deploy a service file."),
    "services": ("groundplane.cli.serving", "List, scale and remove services."),
    "usage": ("groundplane.cli.serving", "Tokens and device-seconds used, from the ledgers."),
    "keys": ("groundplane.cli.keys", "Make, list and revoke API keys."),
    "store": ("groundplane.cli.store", "Files in tiered storage: put, get, list, check, collect."),
    "schema": ("groundplane.cli.schema", "Print the JSON Schema of a spec file, for editors."),
    "catalog": ("groundplane.cli.catalog", "Show chips, servers and models, with their sources."),
    "calibrate": ("groundplane.cli.calibrate", "Fit a stack's profile to your own runs."),
    "validate": ("groundplane.cli.validate", "Compare predictions with published measurements."),
    "tour": ("groundplane.cli.tour", "The whole story on this machine, in minutes."),
}
"""Command name -> (module that holds a click command of that name, one line of help)."""


class LazyGroup(click.Group):
    """Knows the names and one-line helps of its commands; imports a command's module when needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(COMMANDS[cmd_name][0])
        command: click.Command = getattr(module, f"{cmd_name.replace('-', '_')}_command")
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        name = args[0] if args else ""
        if name not in COMMANDS:
            raise unknown_name("command", name, COMMANDS)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Begin with: groundplane tour.  Shell completion: see the README.",
)
@click.version_option(__version__, prog_name="groundplane")
def root() -> None:
    """Design an AI cluster, rehearse it in simulation, run it."""


def main() -> None:
    """Entry point. Exit codes: 0 done, 1 what was asked failed, 2 bad input, 3 a bug of ours, 130 Ctrl-C."""
    try:
        code = root.main(standalone_mode=False)
    except InputError as error:
        fail(str(error), 2)
    except click.ClickException as error:
        where = getattr(error, "ctx", None)
        if where is not None and error.format_message() == where.get_help():
            # A group without a command: its help is the answer, in lines.
            click.echo(error.format_message(), err=True)
            sys.exit(2)
        hint = f" (see {where.command_path} --help)" if where is not None else ""
        fail(error.format_message().replace("\n", " ") + hint, 2)
    except (click.Abort, KeyboardInterrupt):
        fail("interrupted", 130)
    except InvariantError as error:
        fail(f"this is a bug in Groundplane, please report it: {error}", 3)
    except GroundplaneError as error:
        fail(str(error), 1)
    except BrokenPipeError:
        sys.exit(1)
    except ImportError as error:
        extra = missing_extra(error.name or "")
        if extra is None:
            fail(bug_report(error), 3)
        fail(
            f"needs the {extra!r} extra: pip install 'groundplane[{extra}]' ({error.name} is not installed)",
            2,
        )
    except Exception as error:  # noqa: BLE001  the one place behind which there is only the user
        fail(bug_report(error), 3)
    else:
        sys.exit(code if isinstance(code, int) else 0)


EXTRA_OF_MODULE = {
    "torch": "train", "tokenizers": "train", "safetensors": "train", "gguf": "train", "pyarrow": "train",
    "litestar": "platform", "uvicorn": "platform", "sqlalchemy": "platform", "alembic": "platform",
    "httpx": "platform", "aiohttp": "platform", "uvloop": "platform", "httptools": "platform",
    "prometheus_client": "platform", "psycopg": "platform", "xllamacpp": "serve", "openai": "tour",
    "obstore": "storage", "fsspec": "storage", "xxhash": "storage",
}  # fmt: skip


def bug_report(error: Exception) -> str:
    """One line on an exception that nobody foresaw; its traceback goes to a file to send with the report."""
    with tempfile.NamedTemporaryFile(
        "w", prefix="groundplane-", suffix=".txt", delete=False, encoding="utf-8"
    ) as file:
        file.write("".join(traceback.format_exception(error)))
    what = f"{type(error).__name__}: {error}".partition("\n")[0]
    return f"this is a bug in Groundplane, please report it with {file.name}: {what}"


def missing_extra(module: str) -> str | None:
    """The extra that brings a top-level module, or None for a module that no extra brings."""
    return EXTRA_OF_MODULE.get(module.partition(".")[0])


def fail(message: str, code: int) -> NoReturn:
    """Prints one line on standard error and exits."""
    click.echo(f"groundplane: {message}", err=True)
    sys.exit(code)
