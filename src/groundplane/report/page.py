"""One HTML page of sections. Works without a network: style and chart code stand in the file.

Knows how a page looks (`page.html.jinja`) and not what it shows: callers hand it text, rows, figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from groundplane.spec.errors import InputError


@dataclass(frozen=True)
class Text:
    """Paragraphs, separated by blank lines, or preformatted lines."""

    kind: ClassVar[str] = "text"
    text: str
    preformatted: bool = False


@dataclass(frozen=True)
class Table:
    """Rows of ready-made cells. A column is set right when all its cells begin with a digit or a sign."""

    kind: ClassVar[str] = "table"
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    @property
    def numeric(self) -> list[bool]:
        """Whether each column holds numbers only."""
        return [all(_is_number(row[index]) for row in self.rows) for index in range(len(self.columns))]


@dataclass(frozen=True)
class Chart:
    """A plotly figure as plain data: `traces` and `layout` as plotly's JSON schema names them."""

    kind: ClassVar[str] = "chart"
    traces: Sequence[dict[str, Any]]
    layout: dict[str, Any] = field(default_factory=dict)

    def drawn(self) -> str:
        """The figure as HTML that needs the page's chart code."""
        import plotly.graph_objects as go

        layout = {"template": "plotly_white", "height": 380, "margin": {"l": 60, "r": 20, "t": 40, "b": 50}}
        figure = go.Figure(data=list(self.traces), layout=layout | self.layout)
        config = {"displaylogo": False, "responsive": True}
        return str(figure.to_html(full_html=False, include_plotlyjs=False, config=config))


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it."""

    title: str
    parts: Sequence[Text | Table | Chart]


@dataclass(frozen=True)
class Page:
    """A whole report."""

    title: str
    lead: str
    sections: Sequence[Section]

    def html(self) -> str:
        """The page as one self-contained file, about 5 MB when it holds a chart (the chart code)."""
        import jinja2

        environment = jinja2.Environment(
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            loader=jinja2.PackageLoader("groundplane.report", ""),
        )
        has_chart = any(isinstance(part, Chart) for section in self.sections for part in section.parts)
        template = environment.get_template("page.html.jinja")
        return template.render(page=self, script=_chart_script() if has_chart else "")

    def write(self, path: Path) -> None:
        """Writes the page, replacing what was there only when the new one is whole.

        Raises:
            InputError: the file cannot be written.
        """
        partial = path.with_name(path.name + ".partial")
        html = self.html()
        try:
            partial.write_text(html, encoding="utf-8")
            partial.replace(path)
        except OSError as error:
            raise InputError(f"cannot be written: {error.strerror}", file=str(path)) from None


def _chart_script() -> str:
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


def _is_number(cell: str) -> bool:
    return bool(cell) and (cell[0].isdigit() or (cell[0] in "+-.−" and len(cell) > 1))
