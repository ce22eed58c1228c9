"""Reports that people look at: one self-contained HTML page from text, tables and charts."""

from groundplane.report.page import Chart, Page, Section, Table, Text

__all__ = ["Chart", "Page", "Section", "Table", "Text"]
