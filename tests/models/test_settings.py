"""Settings come from the nearest source, and say which."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from hotswap.models.errors import SpecError
from hotswap.models.settings import Settings, resolve, rows, seconds


def test_without_any_source_the_defaults_hold(tmp_path: Path) -> None:
    settings = resolve({"top": None, "seq_len": ()}, folder=tmp_path)
    assert settings == Settings(sources=settings.sources)
    assert set(settings.sources.values()) == {"default"}


def test_flag_beats_environment_beats_config_beats_project_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "hotswap.toml"
    project.write_text('top = 1\nseed = 1\nmode = "eager"\nbatch = 1\n')
    config = tmp_path / "mine.toml"
    config.write_text('\ntop = 2\nseed = 2\nmode = "inductor"\n')
    monkeypatch.setenv("HOTSWAP_TOP", "3")
    monkeypatch.setenv("HOTSWAP_SEED", "3")
    settings = resolve({"top": 4}, config=config, folder=tmp_path)
    assert (settings.top, settings.seed, settings.mode, settings.batch) == (4, 3, "inductor", 1)
    assert settings.sources["top"] == "flag --top"
    assert settings.sources["seed"] == "HOTSWAP_SEED"
    assert settings.sources["mode"] == f"{config}:4"
    assert settings.sources["batch"] == f"{project}:4"
    assert settings.sources["device"] == "default"


def test_a_line_is_looked_for_in_the_right_table(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.other]\ntop = 1\n[tool.hotswap]\ntop = 5\n")
    settings = resolve({}, folder=tmp_path)
    assert settings.top == 5
    assert settings.sources["top"] == f"{tmp_path / 'pyproject.toml'}:4"


def test_pyproject_is_read_under_its_own_table_only(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "x"\n[tool.hotswap]\nseq-len = [128, 512]\nbudget = "90s"\n'
    )
    settings = resolve({}, folder=tmp_path)
    assert settings.seq_len == (128, 512)
    assert settings.budget_s == 90
    assert settings.sources["seq_len"] == f"{tmp_path / 'pyproject.toml'}:4"


@pytest.mark.parametrize(("text", "expected"), [("90s", 90), ("10m", 600), ("1.5h", 5400), ("45", 45), (30, 30)])
def test_a_budget_is_a_time(text: object, expected: float) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["", "-1s", "0", "10 days", "m", True])
def test_what_is_no_time_is_refused(text: object, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"flag --budget: expected a time such as 90s, 10m or 1h"):
        resolve({"budget": text}, folder=tmp_path)


def test_a_bad_variable_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOTSWAP_TOP", "many")
    with pytest.raises(SpecError, match=r"^HOTSWAP_TOP: expected a whole number of 1 or more, got 'many'"):
        resolve({}, folder=tmp_path)


def test_a_bad_value_in_a_file_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "hotswap.toml").write_text("# mine\nseed = 0\nmode = 'fast'\n")
    with pytest.raises(
        SpecError,
        match=r"hotswap.toml:3: mode: expected one of auto, eager, planned, cudagraph, .*, got 'fast'",
    ):
        resolve({}, folder=tmp_path)


def test_an_unknown_name_in_a_file_gets_the_nearest_one(tmp_path: Path) -> None:
    (tmp_path / "hotswap.toml").write_text("bugdet = '1m'\n")
    with pytest.raises(SpecError, match=r"hotswap.toml:1: no setting is called 'bugdet'; did you mean 'budget'\?"):
        resolve({}, folder=tmp_path)


def test_an_unknown_variable_is_said_aloud(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HOTSWAP_BUGDET", "1m")
    monkeypatch.setenv("HOTSWAP_DEBUG", "1")
    with caplog.at_level(logging.WARNING):
        resolve({}, folder=tmp_path)
    assert "HOTSWAP_BUGDET is not a setting of hotswap; did you mean 'budget'?" in caplog.text
    assert "HOTSWAP_DEBUG" not in caplog.text


def test_a_file_that_is_not_toml_is_named(tmp_path: Path) -> None:
    (tmp_path / "hotswap.toml").write_text("top = \n")
    with pytest.raises(SpecError, match=r"hotswap.toml: not TOML \(.*line 1"):
        resolve({}, folder=tmp_path)


def test_a_config_file_that_is_absent_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"absent\.toml: cannot be read"):
        resolve({}, config=tmp_path / "absent.toml", folder=tmp_path)


def test_each_setting_has_a_row_with_its_source(tmp_path: Path) -> None:
    shown = {name: (value, source) for name, value, source in rows(resolve({"seq_len": "128,256"}, folder=tmp_path))}
    assert shown["seq_len"] == ("128, 256", "flag --seq-len")
    assert shown["threads"] == ("-", "default")
    assert shown["dtype"] == ("auto", "default")


def test_short_dtype_names_mean_the_long_ones(tmp_path: Path) -> None:
    assert resolve({"dtype": "bf16"}, folder=tmp_path).dtype == "bfloat16"
