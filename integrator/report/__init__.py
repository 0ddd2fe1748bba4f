"""The report of a run: terminal, Markdown, JSON and one self-contained HTML page."""
