"""How the tour speaks: numbered chapters, the command a person would type, results, and a line that moves.

On a terminal the line shows progress; elsewhere it is left out and chapters print plain lines.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.table import Table

CHAPTERS: Final = 8


class Stage:
    """Prints the tour. `quiet` (for --json) prints to standard error."""

    def __init__(self, *, quiet: bool) -> None:
        self.console = Console(stderr=quiet, highlight=False)
        self._number = 0
        self._begun_s = time.monotonic()

    def chapter(self, title: str, command: str = "") -> None:
        """Begins the next chapter; `command` is what a person would type for it."""
        self._number += 1
        passed = time.monotonic() - self._begun_s
        self.console.print(f"\n[bold]{self._number}/{CHAPTERS}  {title}[/bold]  [dim]{passed:.0f} s[/dim]")
        if command:
            self.console.print(f"     [cyan]$ {command}[/cyan]", soft_wrap=True)

    def say(self, text: str) -> None:
        """One line of result."""
        self.console.print(f"     {text}", soft_wrap=True)

    def table(self, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
        """A table of ready-made cells; all columns but the first are set right."""
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
        for index, name in enumerate(columns):
            table.add_column(name, justify="left" if index == 0 else "right")
        for row in rows:
            table.add_row(*row)
        self.console.print(table)

    @contextmanager
    def moving(self, text: str) -> Iterator[Line]:
        """A line that moves while something goes on; silent where there is no terminal."""
        if not self.console.is_terminal:
            yield Line(None)
            return
        with self.console.status(text) as status:
            yield Line(status)


class Line:
    """The moving line; `set` changes its text."""

    def __init__(self, status: object | None) -> None:
        self._status = status

    def set(self, text: str) -> None:
        """Changes the text."""
        update = getattr(self._status, "update", None)
        if update is not None:
            update(text)
