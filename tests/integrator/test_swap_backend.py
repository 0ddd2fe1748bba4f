from __future__ import annotations

import copy
import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hotswap
from hotswap.integrator import backend, winners
from hotswap.integrator.results import Report
from hotswap.integrator.winners import chosen_tail, load_winners, store_winner, stored_winners
from hotswap.models.errors import RecordError
from hotswap.optimizer.winner import Winner

MakeWinners = Callable[..., list[Winner]]
WriteRun = Callable[[list[Winner]], Path]


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.up(x)) * 2 + x


@pytest.fixture
def tiny() -> Tiny:
    torch.manual_seed(0)
    return Tiny().eval()


def ran() -> int:
    return sum(e.kernel_calls for e in backend.engagement())


def test_torch_compile_knows_the_backend_by_name_and_takes_a_run(
    tiny: Tiny, make_winners: MakeWinners, write_run: WriteRun
) -> None:
    x = torch.randn(3, 16)
    run = write_run(make_winners(tiny.forward, x))
    compiled = torch.compile(tiny, backend="hotswap", options={"run": str(run)})
    before = ran()
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), tiny(x), rtol=0, atol=0)
    assert ran() == before + 1


def test_without_a_run_the_store_is_used(tiny: Tiny, make_winners: MakeWinners) -> None:
    x = torch.randn(3, 16)
    (winner,) = make_winners(tiny.forward, x)
    kept = store_winner(winner)
    try:
        before = ran()
        with torch.no_grad():
            torch.testing.assert_close(torch.compile(tiny, backend="hotswap")(x), tiny(x), rtol=0, atol=0)
        assert ran() == before + 1
    finally:
        kept.unlink()


def test_an_empty_store_is_said_and_the_model_runs(
    tiny: Tiny, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(winners, "store_folder", lambda: tmp_path)
    x = torch.randn(3, 16)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(tiny, backend="hotswap")(x), tiny(x), rtol=0, atol=0)
    assert "holds no winners" in caplog.text


def test_unknown_options_are_refused_by_name(tiny: Tiny) -> None:
    compiled = torch.compile(tiny, backend="hotswap", options={"speed": 11})
    with pytest.raises(Exception, match="option 'speed': unknown to backend 'hotswap'; expected 'run' and 'tail'"):
        compiled(torch.randn(3, 16))


def test_two_winners_for_one_region_are_an_error(tiny: Tiny, make_winners: MakeWinners, write_run: WriteRun) -> None:
    (winner,) = make_winners(tiny.forward, torch.randn(3, 16))
    folder = write_run([winner])
    winner.save(folder / "winners" / "again.json")
    with pytest.raises(RecordError, match="share fingerprint"):
        load_winners(folder)


def test_kernels_of_another_user_are_not_run(
    tiny: Tiny, make_winners: MakeWinners, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (winner,) = make_winners(tiny.forward, torch.randn(3, 16))
    winner.save(tmp_path / "theirs.json")
    monkeypatch.setattr(winners, "store_folder", lambda: tmp_path)
    assert stored_winners() == (winner,)
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(RecordError, match="kernels of another user are not run"):
        stored_winners()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_the_inductor_tail_keeps_kernels_in_inference_and_gradients_in_training(
    tiny: Tiny, make_winners: MakeWinners, write_run: WriteRun
) -> None:
    x = torch.randn(3, 16)
    made = hotswap.patch(tiny, write_run(make_winners(tiny.forward, x)), tail="inductor")
    (fingerprint,) = (w.fingerprint for w in made.winners)

    def calls() -> int:
        return sum(e.kernel_calls for e in made.engagement())

    plain = copy.deepcopy(tiny)
    with torch.no_grad():
        torch.testing.assert_close(tiny(x), plain(x))
        assert calls() == 1
        made.enable(fingerprint, False)
        torch.testing.assert_close(tiny(x), plain(x))
        assert calls() == 1
        made.enable(fingerprint, True)
        torch.testing.assert_close(tiny(x), plain(x))
        assert calls() == 2
    got = torch.autograd.grad(tiny(x).sum(), list(tiny.parameters()))
    torch.testing.assert_close(got, torch.autograd.grad(plain(x).sum(), list(plain.parameters())))
    assert calls() == 2


def test_a_patch_runs_the_rest_as_the_run_measured_best(
    tiny: Tiny, make_winners: MakeWinners, write_run: WriteRun
) -> None:
    run = write_run(make_winners(tiny.forward, torch.randn(3, 16)))
    assert chosen_tail(run) == "eager"
    empty: dict[str, Any] = {
        field.name: {"str": "", "float": 0.0, "bool": True}.get(str(field.type), ())
        for field in dataclasses.fields(Report)
    }
    nothing: dict[str, Any] = {"seconds_by_stage": {}, "matmul_tflop_s": {}, "environment": {}}
    missing = dict.fromkeys(("predicted_speedup", "patched"))
    Report(**{**empty, **nothing, **missing, "tail": "inductor"}).save(run / "report.json")
    assert hotswap.patch(tiny, run).tail == "inductor"
    hotswap.unpatch(tiny)
    assert hotswap.patch(tiny, run, tail="eager").tail == "eager"


def test_a_stored_winner_takes_the_place_of_an_earlier_one_for_its_region(
    tiny: Tiny, make_winners: MakeWinners, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(winners, "store_folder", lambda: tmp_path)
    (winner,) = make_winners(tiny.forward, torch.randn(3, 16))
    assert store_winner(winner) == store_winner(dataclasses.replace(winner, reason="found later"))
    assert [w.reason for w in stored_winners()] == ["found later"]
