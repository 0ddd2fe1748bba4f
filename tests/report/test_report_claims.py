"""What a report may say: gains only where the interval allows, and never `verified` against the evidence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePath

import pytest

from hotswap.integrator.report import claims, races
from hotswap.integrator.results import EndToEnd, Engagement, Report
from hotswap.optimizer.verdict import Arm, Interval


def test_the_headline_names_both_rivals_with_intervals(report: Report) -> None:
    assert claims.headline(report) == (
        "all-MiniLM-L6-v2: 1.42x faster than eager [1.40, 1.45], 1.08x than torch.compile [1.06, 1.10], verified"
    )


def with_speedup(report: Report, **speedup: Interval) -> Report:
    return replace(report, end_to_end=(replace(report.end_to_end[0], speedup=speedup),))


def test_an_interval_that_holds_one_is_no_gain(report: Report) -> None:
    said = claims.headline(with_speedup(report, eager=Interval(1.02, 0.99, 1.05)))
    assert "no different from eager within noise, 1.02x [0.99, 1.05]" in said
    assert "faster" not in said


def test_a_loss_is_called_slower(report: Report) -> None:
    said = claims.headline(with_speedup(report, eager=Interval(1.3, 1.2, 1.4), compile=Interval(0.9, 0.88, 0.92)))
    assert "1.30x faster than eager [1.20, 1.40], slower than torch.compile, 0.90x [0.88, 0.92]" in said


def test_a_failed_check_and_an_idle_kernel_both_unsay_verified(report: Report) -> None:
    failed = replace(report.checks[0], passed=False, detail="top-1 differs")
    idle = Engagement("gelu", 6, 0, 12, {})
    worse = replace(report, checks=(failed, *report.checks[1:]), engagement=(idle,))
    assert claims.headline(worse).endswith("NOT VERIFIED (1 of 5 checks failed), NOT ENGAGED (gelu never ran)")
    assert not claims.is_verified(worse)
    assert any("top-1 differs" in line for line in claims.standing(worse))


def test_without_checks_nothing_is_verified(report: Report) -> None:
    assert "not verified (no check has run)" in claims.headline(replace(report, checks=()))


def test_a_sound_and_complete_report_needs_no_warning(report: Report) -> None:
    assert claims.standing(report) == ()


def test_a_partial_report_says_so_first(report: Report) -> None:
    assert claims.standing(replace(report, complete=False))[0].startswith("Partial report")


def mix(report: Report) -> Report:
    def race(call: str, weight: float, hotswap_us: float, interval: Interval) -> EndToEnd:
        return replace(
            report.end_to_end[0],
            call=call,
            weight=weight,
            arms=(Arm("hotswap", (hotswap_us,), hotswap_us),),
            speedup={"eager": interval},
        )

    return replace(
        report,
        end_to_end=(
            race("long", 1.0, 3000.0, Interval(2.0, 1.9, 2.1)),
            race("short", 9.0, 1000.0, Interval(1.0, 0.9, 1.1)),
        ),
    )


def test_a_served_mix_is_the_ratio_of_its_summed_times(report: Report) -> None:
    both = races.overall(mix(report), "eager")
    assert both is not None
    eager_us, hotswap_us = 1 * 2.0 * 3000 + 9 * 1.0 * 1000, 1 * 3000 + 9 * 1000
    assert both.median == pytest.approx(eager_us / hotswap_us)
    assert both.low < both.median < both.high


def test_a_rival_that_ran_on_one_call_only_is_claimed_for_that_call_only(report: Report) -> None:
    mixed = mix(report)
    half = replace(mixed.end_to_end[0], speedup={**mixed.end_to_end[0].speedup, "compile": Interval(1.2, 1.1, 1.3)})
    partly = replace(mixed, end_to_end=(half, mixed.end_to_end[1]))
    assert races.overall(partly, "compile") == Interval(1.2, 1.1, 1.3)
    assert "than torch.compile on long [1.10, 1.30]" in claims.headline(partly)


def without_kernels(report: Report) -> Report:
    left = tuple(replace(row, outcome="left alone", after_us=None, model_gain=None) for row in report.rows)
    return replace(report, rows=left, engagement=(), ablations=(), after=(), patched=None)


def test_no_kernel_is_no_gain_found_with_a_reason(report: Report) -> None:
    bare = unpatched(report)
    assert claims.headline(bare) == "all-MiniLM-L6-v2: no gain found; the model was left as it is"
    assert claims.standing(bare)[0].startswith("40 attempts on 8 tasks")


def test_a_model_that_rewrites_alone_made_faster_is_a_gain(report: Report) -> None:
    assert claims.headline(without_kernels(report)).startswith("all-MiniLM-L6-v2: 1.42x faster than eager")


def unpatched(report: Report) -> Report:
    """A run that kept nothing: torch.compile was raced against eager, and there is no hotswap arm."""
    race = report.end_to_end[0]
    arms = tuple(arm for arm in race.arms if arm.name != "hotswap")
    only = replace(race, arms=arms, speedup={"eager": Interval(1.31, 1.29, 1.34)})
    return replace(without_kernels(report), end_to_end=(only,))


def test_where_nothing_was_found_a_faster_rival_is_recommended(report: Report) -> None:
    assert "torch.compile makes this model 1.31x faster: use that." in claims.standing(unpatched(report))[0]


def test_a_gain_of_torch_compile_is_never_booked_as_ours(report: Report) -> None:
    bare = unpatched(report)
    assert races.overall(bare, "eager") is None
    assert "faster" not in claims.headline(replace(bare, complete=False))
    assert next(races.lines(bare))[3] == "torch.compile 1.31x [1.29, 1.34]"


def test_no_task_at_all_names_the_hottest_thing_left_out(report: Report) -> None:
    bare = replace(unpatched(report), rows=(), stories=())
    assert "dropout: random: a barrier" in claims.standing(bare)[0]


def test_a_call_that_ran_unpatched_only_takes_no_part_in_the_mix(report: Report) -> None:
    patched, unpatched_race = report.end_to_end[0], unpatched(report).end_to_end[0]
    both = replace(report, end_to_end=(patched, replace(unpatched_race, call="other")))
    assert races.overall(both, "eager") == patched.speedup["eager"]
    assert races.scope(both, "eager") == patched.call


def test_the_wait_for_the_patched_model_is_that_of_the_tail_it_runs_with(report: Report) -> None:
    race = replace(report.end_to_end[0], compile_s={"hotswap (eager)": 3.2, "hotswap (inductor)": 25.0})
    waits = [line[4] for line in races.lines(replace(report, end_to_end=(race,)))]
    assert waits == ["\N{EN DASH}", "\N{EN DASH}", "3.2 s"]


def test_loading_imports_the_exported_package_by_its_own_name(report: Report) -> None:
    (_, alone), (_, beside) = claims.loading(report, PurePath("some/where"))
    assert "sys.path.insert(0, 'some/where')" in alone
    assert "patched.load()" in alone
    assert "hotswap.patch(model, 'some/where')" in beside
    for code in (alone, beside):
        compile(code, "shown", "exec")


def test_equal_ops_of_a_row_are_counted(report: Report) -> None:
    assert claims.ops(report.rows[3]) == "embedding (3), add (2), layer_norm"


def test_a_large_output_tree_is_cut_to_its_failures_and_worst_leaves(report: Report) -> None:
    leaf = report.checks[0].leaves[0]
    many = tuple(replace(leaf, path=f"past.{i}", error=i / 1000, passed=i not in (1, 2)) for i in range(40))
    shown, more = claims.worst_leaves(replace(report.checks[0], leaves=many))
    assert [leaf.path for leaf in shown] == ["past.2", "past.1", "past.39", "past.38", "past.37", "past.36"]
    assert more == 34
