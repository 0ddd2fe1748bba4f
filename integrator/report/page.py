"""Turn a Report into one HTML file that needs nothing else: no network, no other file, no library."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import PurePath

from ..results import Ablation, Report, TaskStory
from . import claims, races, sections
from .figures import TIMES, counted, one_line, ratio, with_bounds
from .guide import READING
from .markup import Markup, element, join
from .progress import progress
from .roofline import roofline
from .waterfall import waterfall
from .whiskers import Line, Mark, whiskers

_SLOT = re.compile(r"\{\{(\w+)\}\}")


@dataclass(frozen=True)
class Section:
    """One part of the page. how: a short paragraph on how to read it."""

    anchor: str
    title: str
    how: str
    body: Markup


def html(report: Report, folder: PurePath | None = None) -> str:
    """Return the page. Its policy forbids every request, and every script but its own (by hash)."""
    script = _asset("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    made = list(_sections(report, folder))
    tone = "standing quiet" if claims.is_no_gain(report) else "standing"
    slots = {
        "policy": f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'",
        "title": join([f"{one_line(report.model)}, hotswap report"]),
        "css": _asset("page.css"),
        "js": script,
        "model": join([one_line(report.model)]),
        "claim": _claim(report),
        "circumstances": join([claims.circumstances(report)]),
        "standing": join(element("p", line, class_=tone) for line in claims.standing(report)),
        "notes": join(element("p", f"Note: {one_line(note)}", class_="note") for note in report.notes),
        "contents": join((element("a", s.title, href=f"#{s.anchor}") for s in made), " "),
        "sections": join(_render(s) for s in made),
    }
    # One pass over the template: what is filled in is never searched for slots again.
    return _SLOT.sub(lambda match: slots[match.group(1)], _asset("page.html"))


def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _claim(report: Report) -> Markup:
    sentence = claims.headline(report, times=TIMES).removeprefix(f"{one_line(report.model)}: ")
    sound = claims.is_verified(report) or claims.is_no_gain(report)
    return element("p", f"{sentence[0].upper()}{sentence[1:]}.", class_="claim" if sound else "claim unsound")


def _render(section: Section) -> Markup:
    return element(
        "section",
        element("h2", section.title),
        element("p", one_line(section.how), class_="how"),
        section.body,
        id=section.anchor,
    )


def _sections(report: Report, folder: PurePath | None) -> Iterator[Section]:
    if report.end_to_end:
        yield Section(
            "whole", "The whole model", READING["whole"], join((_headline_figure(report), sections.whole_model(report)))
        )
    if sum(bar.us for bar in report.before) > 0:
        yield Section(
            "waterfall",
            "Where the time went",
            READING["waterfall" if report.after else "before"],
            waterfall(report.before, report.after),
        )
    yield Section("ops", "Op by op", READING["ops"], sections.per_op(report))
    if report.ablations or (report.predicted_speedup is not None and races.rivals(report)):
        yield Section("amdahl", "Predicted and measured", READING["amdahl"], _amdahl(report))
    if report.ablations:
        yield Section("ablation", "Ablation", READING["ablation"], _ablation(report))
    if (drawn := roofline(report)) is not None:
        yield Section("roofline", "Roofline", READING["roofline"], drawn)
    if any(story.points for story in report.stories):
        yield Section("search", "The search", READING["search"], _search(report))
    if report.stories:
        yield Section("sources", "Sources", READING["sources"], _sources(report))
    yield Section("checks", "Numerical checks", READING["checks"], sections.checks(report))
    yield Section("engagement", "Did the kernels run", READING["engagement"], sections.engagement(report))
    yield Section("skipped", "Skipped, and why", READING["skipped"], sections.skipped(report))
    yield Section("loading", "How to load the result", READING["loading"], sections.loading(report, folder))
    yield Section("environment", "Environment", READING["environment"], sections.environment(report))


def _headline_figure(report: Report) -> Markup:
    lines = []
    for rival in races.rivals(report):
        interval = races.overall(report, rival)
        if interval is not None:
            where = races.scope(report, rival)
            name = f"against {races.name_of(rival)}{f', {where}' if where else ''}"
            lines.append(Line(name, (Mark("measured", interval, name),), with_bounds(interval, times=TIMES)))
    for race in report.end_to_end if len(report.end_to_end) > 1 else ():
        for rival, interval in race.speedup.items() if races.subject(race) == races.HOTSWAP else ():
            name = f"{races.name_of(rival)}, {one_line(race.call)}"
            lines.append(Line(name, (Mark("alone", interval, name),), with_bounds(interval, times=TIMES)))
    said = "; ".join(f"{line.name} {line.words}" for line in lines)
    return whiskers("headline", "Speed-up of the whole model with 99% intervals", said, lines) if lines else Markup("")


def _amdahl(report: Report) -> Markup:
    numbers = _numbers(report)
    lines = [_amdahl_line(ablation, numbers) for ablation in report.ablations]
    total = races.overall(report, "eager")
    if total is not None and report.predicted_speedup is not None:
        marks = (Mark("measured", total, "measured"), Mark.predicted(report.predicted_speedup))
        words = f"{ratio(report.predicted_speedup, times=TIMES)} → {with_bounds(total, times=TIMES)}"
        lines.append(Line("all, against eager", marks, words, strong=True))
    said = "; ".join(f"{line.name}: predicted, then measured {line.words}" for line in lines)
    return whiskers("amdahl-figure", "Predicted and measured gain of the whole model by task", said, lines, fine=True)


def _amdahl_line(ablation: Ablation, numbers: dict[str, int]) -> Line:
    marks = (Mark("measured", ablation.leave_one_out, "measured"), Mark.predicted(ablation.predicted))
    measured = with_bounds(ablation.leave_one_out, fine=True, times=TIMES)
    return Line(_label(ablation, numbers), marks, f"{ratio(ablation.predicted, fine=True, times=TIMES)} → {measured}")


def _label(ablation: Ablation, numbers: dict[str, int]) -> str:
    return f"{numbers.get(ablation.task, '')} {one_line(ablation.task)}".strip()


def _ablation(report: Report) -> Markup:
    numbers, lines = _numbers(report), []
    for ablation in report.ablations:
        marks = [Mark("measured", ablation.leave_one_out, "left out")]
        if ablation.add_one_in is not None:
            marks.append(Mark("alone", ablation.add_one_in, "alone"))
        words = "kept" if ablation.kept else one_line(ablation.reason) or "dropped"
        lines.append(Line(_label(ablation, numbers), tuple(marks), words))
    said = "; ".join(_ablation_words(ablation) for ablation in report.ablations)
    return whiskers("ablation-figure", "Each task left out, and each alone", said, lines, fine=True)


def _ablation_words(ablation: Ablation) -> str:
    alone = with_bounds(ablation.add_one_in, fine=True)
    return f"{one_line(ablation.task)}: left out {with_bounds(ablation.leave_one_out, fine=True)}, alone {alone}"


def _search(report: Report) -> Markup:
    made = []
    for number, story in _numbered(report):
        drawn = progress(number, story)
        if drawn is not None:
            accepted = sum(point.accepted for point in story.points)
            tally = element("span", f"{accepted} of {counted(len(story.points), 'attempt')} accepted", class_="tally")
            head = element("h3", element("span", str(number), class_="key"), " ", one_line(story.task), " ", tally)
            made.append(element("div", head, drawn, class_="small"))
    return element("div", *made, class_="multiples")


def _sources(report: Report) -> Markup:
    return join(sections.sources(number, story) for number, story in _numbered(report))


def _numbered(report: Report) -> list[tuple[int, TaskStory]]:
    """Return the stories with their row's number, in the table's order; what has no row comes last."""
    numbers = _numbers(report)
    return sorted(
        ((numbers.get(story.task, len(numbers) + extra), story) for extra, story in enumerate(report.stories, 1)),
        key=lambda pair: pair[0],
    )


def _numbers(report: Report) -> dict[str, int]:
    """Return the number of each task in the per-op table, which every figure repeats."""
    return {row.task: number for number, row in enumerate(report.rows, 1)}
