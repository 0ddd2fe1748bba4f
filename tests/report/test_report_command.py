"""`hotswap report RUN`: any form again from the record alone, and one clear line where there is none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from hotswap.cli.report import command
from hotswap.integrator.report.render import write
from hotswap.integrator.results import Report
from hotswap.models.errors import RecordError


@pytest.fixture
def run(report: Report, tmp_path: Path) -> Path:
    write(report, tmp_path)
    return tmp_path


def test_the_terminal_form_is_shown(run: Path) -> None:
    result = CliRunner().invoke(command, [str(run)])
    assert result.exit_code == 0
    assert "1.42x faster than eager" in result.stdout


def test_json_is_the_record_and_nothing_else(run: Path, report: Report) -> None:
    result = CliRunner().invoke(command, [str(run), "--json"])
    body = json.loads(result.stdout)
    assert (body.pop("record"), body.pop("schema")) == ("Report", Report.SCHEMA)
    assert Report.from_dict(body) == report


def test_the_page_is_made_again_where_it_is_asked_for(run: Path, tmp_path: Path) -> None:
    page = tmp_path / "elsewhere" / "page.html"
    result = CliRunner().invoke(command, [str(run), "--html", str(page)])
    assert result.exit_code == 0
    assert page.read_text(encoding="utf-8") == (run / "report.html").read_text(encoding="utf-8")
    assert "page.html" in result.stderr
    assert "page.html" not in result.stdout


def test_markdown_is_written_where_it_is_asked_for(run: Path, tmp_path: Path) -> None:
    text = tmp_path / "again.md"
    assert CliRunner().invoke(command, [str(run), "--markdown", str(text)]).exit_code == 0
    assert text.read_text(encoding="utf-8") == (run / "report.md").read_text(encoding="utf-8")


def test_open_makes_the_page_beside_the_record_and_opens_that(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("click.launch", opened.append)
    (run / "report.html").unlink()
    assert CliRunner().invoke(command, [str(run), "--open"]).exit_code == 0
    assert opened == [(run / "report.html").resolve().as_uri()]
    assert (run / "report.html").is_file()


def test_looking_at_a_report_writes_nothing(run: Path) -> None:
    (run / "report.html").unlink()
    (run / "report.md").unlink()
    CliRunner().invoke(command, [str(run)])
    assert [p.name for p in run.iterdir()] == ["report.json"]


@pytest.mark.parametrize(("made", "said"), [(False, "no run directory there"), (True, "hotswap resume")])
def test_a_run_without_a_record_is_one_line_and_exit_4(tmp_path: Path, *, made: bool, said: str) -> None:
    folder = tmp_path / "run"
    if made:
        (folder / "tasks").mkdir(parents=True)
    error = CliRunner().invoke(command, [str(folder)]).exception
    assert isinstance(error, RecordError)
    assert error.exit_code == 4
    assert said in str(error)
    assert "\n" not in str(error)


def test_a_truncated_record_is_refused(run: Path) -> None:
    text = (run / "report.json").read_text(encoding="utf-8")
    (run / "report.json").write_text(text[: len(text) // 2], encoding="utf-8")
    assert isinstance(CliRunner().invoke(command, [str(run), "--json"]).exception, RecordError)


def test_importing_the_command_imports_neither_torch_nor_rich() -> None:
    code = "import sys; import hotswap.cli.report; assert not {'torch', 'rich', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
