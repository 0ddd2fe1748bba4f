"""What a report may claim, in words: the same sentences for the terminal, Markdown and the page."""

from __future__ import annotations

from collections import Counter
from pathlib import PurePath

from ..results import Check, LeafCheck, OpRow, Report
from .figures import clock, counted, one_line, percent, ratio
from .races import best_unpatched, comparison, rivals

TAILS = {
    "eager": "everything that was not swapped runs in eager",
    "planned": "everything that was not swapped runs in eager, its intermediates in memory laid out once",
    "cudagraph": "the whole runs as a CUDA graph",
    "inductor": "everything that was not swapped is compiled by Inductor",
    "inductor-cudagraph": "everything that was not swapped is compiled by Inductor, the whole runs as a CUDA graph",
}
OUTCOMES = {"kernel": "kernel", "inductor": "Inductor's code", "left alone": "left alone", "dropped": "dropped"}


def failed_checks(report: Report) -> tuple[Check, ...]:
    return tuple(check for check in report.checks if not check.passed)


def idle(report: Report) -> tuple[str, ...]:
    """Return the swapped tasks whose kernel was never called: they prove nothing."""
    return tuple(e.task for e in report.engagement if e.kernel_calls == 0)


def verification(report: Report) -> str:
    """Return `verified`, or in capitals what stands against it."""
    against = []
    if failed_checks(report):
        against.append(f"NOT VERIFIED ({len(failed_checks(report))} of {counted(len(report.checks), 'check')} failed)")
    if idle(report):
        against.append(f"NOT ENGAGED ({', '.join(one_line(task) for task in idle(report))} never ran)")
    return ", ".join(against) or ("verified" if report.checks else "not verified (no check has run)")


def is_verified(report: Report) -> bool:
    return bool(report.checks) and not failed_checks(report) and not idle(report)


def is_no_gain(report: Report) -> bool:
    """Whether the run ended, and the model stayed as it was."""
    measured = any(arm.name == "hotswap" for end in report.end_to_end for arm in end.arms)
    return (
        report.complete
        and report.patched is None
        and not measured
        and all(row.outcome != "kernel" for row in report.rows)
    )


def headline(report: Report, *, times: str = "x") -> str:
    """Return the one line a reader takes away."""
    model = one_line(report.model)
    if is_no_gain(report):
        return f"{model}: no gain found; the model was left as it is"
    parts = [part for name in rivals(report) if (part := comparison(report, name, times=times)) is not None]
    if not parts:
        return f"{model}: not measured as a whole, {verification(report)}"
    if len(parts) > 1 and all(" faster than " in part for part in parts[:2]):
        parts[1] = parts[1].replace(" faster than ", " than ", 1)
    return f"{model}: {', '.join(parts)}, {verification(report)}"


def standing(report: Report) -> tuple[str, ...]:
    """Return what must be read before anything else: stopped early, failed, never engaged, no gain; often nothing."""
    lines = []
    if not report.complete:
        lines.append(
            "Partial report: the run was stopped before its end. What is here was measured; what is missing is a dash."
        )
    if is_no_gain(report):
        lines.append(no_gain_reason(report))
    lines += [f"Check failed: {one_line(c.name)}. {one_line(c.detail)}".rstrip() for c in failed_checks(report)]
    lines += [
        f"{one_line(task)}: its kernel was swapped in but never called, so its figures mean nothing."
        for task in idle(report)
    ]
    return tuple(lines)


def no_gain_reason(report: Report) -> str:
    """Return why nothing was changed."""
    if not report.rows:
        hot = max(report.skipped, key=lambda s: s.share, default=None)
        because = f"; the hottest thing left out was {one_line(hot.what)}: {one_line(hot.reason)}" if hot else ""
        return f"No region of this model could become a task{because}."
    tried = sum(row.attempts for row in report.rows)
    effort = f"{counted(tried, 'attempt')} on {counted(len(report.rows), 'task')}"
    parts = [f"{effort}, and none made the whole model measurably faster"]
    dropped = sum(row.outcome == "dropped" for row in report.rows)
    if dropped:
        parts.append(f"{dropped} won alone and {'was' if dropped == 1 else 'were'} dropped by the ablation")
    words = f"{'; '.join(parts)}. The table below has the reason for each."
    better = best_unpatched(report)
    if better is not None:
        words += f" {better[0]} makes this model {ratio(better[1])} faster: use that."
    return words


def circumstances(report: Report) -> str:
    """Return one line on where and how the figures were taken."""
    parts = [one_line(report.device), one_line(report.dtype), f"run took {clock(report.seconds)}"]
    parts.append(f"{percent(report.coverage)} of the eager step attributed")
    return "; ".join(parts)


def loading(report: Report, folder: PurePath | None = None) -> tuple[tuple[str, str], ...]:
    """Return (what it needs, Python text) for each way to use the result; empty where nothing was exported.

    A relative path of the package counts from the run's `folder`; without one the current directory is meant.
    """
    if report.patched is None:
        return ()
    package = (folder or PurePath()) / one_line(report.patched)
    here, name = str(package.parent), package.name
    alone = (
        f"import sys; sys.path.insert(0, {here!r})\n"
        f"import {name}\n"
        f"model = {name}.load()    # rebuilt from its spec, kernels in place\n"
        f"{name}.patch(model)      # or: your own instance, its weights untouched"
    )
    beside = (
        "import hotswap\n"
        f"hotswap.patch(model, {here!r})    # in place, this instance only\n"
        "hotswap.unpatch(model)    # exactly what it was"
    )
    return (("With torch alone", alone), ("With hotswap installed", beside))


def site(row: OpRow) -> str:
    """Return where a row stands: module path, class, and how many equal places."""
    module, name = one_line(row.module), one_line(row.module_class)
    where = f"{module} ({name})" if module and name else module or name or "(top level)"
    return where if row.sites == 1 else f"{where}, {counted(row.sites, 'site')}"


def ops(row: OpRow) -> str:
    """Return the row's ops in order, equal ones counted: `embedding (3), add (2), layer_norm`."""
    tally = Counter(one_line(op) for op in row.ops)
    return ", ".join(op if times == 1 else f"{op} ({times})" for op, times in tally.items())


LEAVES = 6


def worst_leaves(check: Check) -> tuple[tuple[LeafCheck, ...], int]:
    """Return the leaves worth a line, and how many more passed: all of a small tree, else failures and worst errors."""
    if len(check.leaves) <= LEAVES:
        return check.leaves, 0
    worst = sorted(check.leaves, key=lambda leaf: (leaf.passed, -leaf.error))
    shown = max(LEAVES, sum(not leaf.passed for leaf in check.leaves))
    return tuple(worst[:shown]), len(worst) - shown


def outcome(row: OpRow) -> str:
    """Return how a task ended and why, as one phrase."""
    reason = one_line(row.reason)
    return f"{OUTCOMES[row.outcome]}: {reason}" if reason else OUTCOMES[row.outcome]
