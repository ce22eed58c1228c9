"""A page must stand alone and must not let what it shows become markup."""

from pathlib import Path

from groundplane.report import Chart, Page, Section, Table, Text


def page(*parts: Text | Table | Chart) -> Page:
    return Page("Title <x>", "lead & more", [Section("One", parts)])


def test_text_is_escaped_and_paragraphs_are_kept() -> None:
    html = page(Text("a <script>alert(1)</script>\n\nb"), Text("x  y", preformatted=True)).html()
    assert "<script>alert" not in html
    assert "<p>b</p>" in html
    assert "<pre>x  y</pre>" in html
    assert "Title &lt;x&gt;" in html


def test_columns_of_numbers_are_set_right() -> None:
    html = page(Table(["name", "time"], [["a", "1.2 s"], ["b", "-3 s"]])).html()
    assert "<td class=number>1.2 s</td>" in html.replace('"', "")
    assert "<td>a</td>" in html


def test_a_chart_brings_its_code_and_needs_no_network() -> None:
    html = page(Chart([{"type": "bar", "x": ["a"], "y": [1]}])).html()
    assert "Plotly.newPlot" in html
    assert 'src="http' not in html


def test_a_page_is_written_whole(tmp_path: Path) -> None:
    page(Text("x")).write(tmp_path / "report.html")
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]
