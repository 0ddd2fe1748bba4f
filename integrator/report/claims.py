"""What a report may claim, in words: the same sentences for the terminal, Markdown and the page."""

from __future__ import annotations

from collections import Counter
from pathlib import PurePath

from ...optimizer.verdict import Interval
from ..results import Check, EndToEnd, LeafCheck, OpRow, Report
from .figures import bounds, clock, counted, one_line, percent, ratio, with_bounds

RIVALS = {"eager": "eager", "compile": "torch.compile"}
ARMS = {**RIVALS, "hotswap": "hotswap"}
TAILS = {
    "eager": "everything that was not swapped runs in eager",
    "cudagraph": "everything that was not swapped is replayed from CUDA graphs",
    "inductor": "everything that was not swapped is compiled by Inductor",
}
OUTCOMES = {"kernel": "kernel", "inductor": "Inductor's code", "left alone": "left alone", "dropped": "dropped"}


def rivals(report: Report) -> tuple[str, ...]:
    """Return the names of the arms hotswap was raced against on every call, eager and torch.compile first."""
    if not report.end_to_end:
        return ()
    shared = [name for name in report.end_to_end[0].speedup if all(name in e.speedup for e in report.end_to_end)]
    known = [name for name in RIVALS if name in shared]
    return (*known, *sorted(set(shared) - set(known)))


def overall(report: Report, rival: str) -> Interval | None:
    """Return the speed-up over all calls as they are served, None where `rival` was not raced on all of them.

    A served mix takes sum(weight x time); its ratio is the calls' ratios weighted by weight x hotswap's time. The
    bounds are averaged in the same way: exact for one call, too wide rather than too narrow for several.
    """
    if rival not in rivals(report):
        return None
    weights = [e.weight * _hotswap_us(e) for e in report.end_to_end]
    total = sum(weights)
    if not total:
        return None
    pairs = [(w / total, e.speedup[rival]) for w, e in zip(weights, report.end_to_end, strict=True)]
    return Interval(
        median=sum(w * i.median for w, i in pairs),
        low=sum(w * i.low for w, i in pairs),
        high=sum(w * i.high for w, i in pairs),
    )


def _hotswap_us(race: EndToEnd) -> float:
    return next((arm.median_us for arm in race.arms if arm.name == "hotswap"), 0.0)


def comparison(interval: Interval, rival: str, *, times: str = "x") -> str:
    """Return `1.42x faster than eager [1.40, 1.45]`; a gain or a loss is claimed only where the interval excludes 1."""
    name = RIVALS.get(rival, one_line(rival))
    if interval.low > 1.0:
        return f"{ratio(interval.median, times=times)} faster than {name} {bounds(interval)}"
    if interval.high < 1.0:
        return f"slower than {name}, {with_bounds(interval, times=times)}"
    return f"no different from {name} within noise, {with_bounds(interval, times=times)}"


def swapped(report: Report) -> tuple[OpRow, ...]:
    """Return the rows whose ops were replaced in the patched model, by a kernel of ours or by Inductor's code."""
    return tuple(row for row in report.rows if row.outcome in ("kernel", "inductor"))


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
    """Whether the run ended with the model as it was."""
    return report.complete and not swapped(report) and report.tail == "eager"


def headline(report: Report, *, times: str = "x") -> str:
    """Return the one line a reader takes away."""
    model = one_line(report.model)
    if is_no_gain(report):
        return f"{model}: no gain found; the model was left as it is"
    measured = [(name, interval) for name in rivals(report) if (interval := overall(report, name)) is not None]
    if not measured:
        return f"{model}: not measured as a whole, {verification(report)}"
    parts = [comparison(interval, name, times=times) for name, interval in measured]
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
    compiled = overall(report, "compile")
    if compiled is not None and compiled.high < 1.0:
        words += f" torch.compile makes this model {ratio(1.0 / compiled.median)} faster: use that."
    return words


def circumstances(report: Report) -> str:
    """Return one line on where and how the figures were taken."""
    parts = [one_line(report.device), one_line(report.dtype), f"run took {clock(report.seconds)}"]
    parts.append(f"{percent(report.coverage)} of the eager step attributed")
    return "; ".join(parts)


def loading(report: Report) -> tuple[tuple[str, str], ...]:
    """Return (what it needs, Python text) for each way to use the result; empty where nothing was exported."""
    if report.patched is None:
        return ()
    package = PurePath(one_line(report.patched))
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
