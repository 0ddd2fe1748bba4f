"""The machine is described truly, its cache is the user's own, and neither costs an import of triton."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hotswap.models import machine
from hotswap.models.cache import cache_dir
from hotswap.models.environment import environment
from hotswap.models.errors import EnvironmentMissing


def test_the_cache_directory_is_the_one_chosen_and_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOTSWAP_CACHE", str(tmp_path / "deep" / "cache"))
    folder = cache_dir()
    assert folder == tmp_path / "deep" / "cache"
    assert folder.stat().st_mode & 0o777 == 0o700


def test_without_a_choice_the_cache_is_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOTSWAP_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "hotswap"


def test_a_cache_others_may_write_to_is_refused_and_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o777)
    monkeypatch.setenv("HOTSWAP_CACHE", str(tmp_path))
    with pytest.raises(EnvironmentMissing, match="others may write to it"):
        cache_dir()
    assert tmp_path.stat().st_mode & 0o777 == 0o777


def test_a_cache_of_somebody_elses_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOTSWAP_CACHE", str(tmp_path))
    monkeypatch.setattr("os.getuid", lambda: 12345)
    with pytest.raises(EnvironmentMissing, match="belongs to user id"):
        cache_dir()


def test_a_cache_where_a_file_stands_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "taken").write_text("")
    monkeypatch.setenv("HOTSWAP_CACHE", str(tmp_path / "taken"))
    with pytest.raises(EnvironmentMissing, match="taken: File exists; set HOTSWAP_CACHE"):
        cache_dir()


def test_the_environment_says_what_a_reader_must_compare() -> None:
    found = environment()
    assert found["torch"] == torch.__version__
    assert found["threads"] == str(torch.get_num_threads())
    assert all(isinstance(v, str) and v for k, v in found.items() if k != "cpu_flags")
    assert {"python", "triton", "transformers", "cpu", "cpu_flags", "compiler", "device", "os"} <= set(found)


@pytest.mark.parametrize(
    ("flags", "native"),
    [
        ({"avx512f", "avx512_bf16"}, True),
        ({"amx_bf16"}, True),
        ({"asimd", "bf16"}, True),
        ({"avx2", "avx512f"}, False),
        (set(), False),
    ],
)
def test_bf16_is_native_only_where_the_cpu_says_so(flags: set[str], native: bool) -> None:
    assert machine.native_bf16(frozenset(flags)) is native


def test_a_cpu_is_read_from_the_systems_description(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    described = tmp_path / "cpuinfo"
    described.write_text("processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: fpu avx2 amx_bf16\n")
    monkeypatch.setattr(machine, "CPUINFO", described)
    assert machine._cpuinfo("model name") == "Some CPU"
    assert machine.flags_that_matter(frozenset(machine._cpuinfo("flags").split())) == ("avx2", "amx_bf16")


def test_importing_the_stage_imports_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, hotswap.models.spec, hotswap.models.settings, hotswap.models.cache, hotswap.models.environment;"
        "sys.exit(bool({'torch', 'transformers', 'triton'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
