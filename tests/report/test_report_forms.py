"""The report in its four forms: terminal, Markdown, the page, and the record they are made from."""

from __future__ import annotations

import base64
import hashlib
import io
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path, PurePath

import pytest
from rich.console import Console

from hotswap.integrator.report.highlight import highlight
from hotswap.integrator.report.markup import element
from hotswap.integrator.report.render import html, markdown, terminal, write
from hotswap.integrator.report.roofline import points
from hotswap.integrator.report.svg import Scale
from hotswap.integrator.report.waterfall import steps
from hotswap.integrator.results import Bar, Report

HOSTILE = "</script><script>alert(1)</script> \"' onload=x | `b` \x1b[31m"
VOID = {"meta", "br", "wbr"}


class Page(HTMLParser):
    """Reads a page strictly: every element closes, and all of them are kept with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def ids(self) -> list[str]:
        return [value for _, attrs in self.elements if (value := attrs.get("id")) is not None]


def shown(report: Report, width: int) -> str:
    console = Console(width=width, file=io.StringIO())
    terminal(report, console, PurePath("runs/20251130-140511-all-MiniLM-L6-v2"))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def hostile(report: Report) -> Report:
    row = replace(report.rows[0], task=HOSTILE, module=HOSTILE, module_class=HOSTILE, ops=(HOSTILE,), reason=HOSTILE)
    story = replace(report.stories[0], task=HOSTILE, reference=HOSTILE, kernel=HOSTILE)
    point = replace(story.points[1], reason=HOSTILE, proposer=HOSTILE)
    return replace(
        report,
        model=HOSTILE,
        device=HOSTILE,
        rows=(row, *report.rows[1:]),
        stories=(replace(story, points=(point, *story.points)), *report.stories[1:]),
        skipped=(replace(report.skipped[0], what=HOSTILE, reason=HOSTILE),),
        checks=(replace(report.checks[0], name=HOSTILE, detail=HOSTILE, passed=False),),
        before=(*report.before, Bar(HOSTILE, 9000.0)),
        environment={HOSTILE: HOSTILE},
        breaks=(HOSTILE,),
        notes=(HOSTILE,),
    )


def bare(report: Report) -> Report:
    """What is left of a run that was stopped after extraction."""
    rows = tuple(
        replace(row, after_us=None, inductor_us=None, speedup_eager=None, speedup_inductor=None, model_gain=None)
        for row in report.rows
    )
    nothing: dict[str, object] = dict.fromkeys(
        ("end_to_end", "checks", "engagement", "ablations", "stories", "skipped", "after", "notes", "breaks"), ()
    )
    return replace(
        report,
        complete=False,
        rows=rows,
        predicted_speedup=None,
        patched=None,
        seconds_by_stage={},
        matmul_tflop_s={},
        **nothing,  # type: ignore[arg-type]
    )


def empty(report: Report) -> Report:
    return replace(bare(report), rows=(), before=(), environment={}, complete=True)


@pytest.mark.parametrize("width", [80, 100, 160])
def test_no_line_on_the_terminal_is_wider_than_it(report: Report, width: int) -> None:
    lines = shown(report, width).splitlines()
    prose = [line for line in lines if "'runs/" not in line]  # a line of code is for copying and is never broken
    assert max(len(line.rstrip()) for line in prose) <= width


@pytest.mark.parametrize("width", [100, 160])
def test_the_columns_of_the_terminal_table_stand_under_their_heads(report: Report, width: int) -> None:
    lines = shown(report, width).splitlines()
    head = next(line for line in lines if "vs Inductor" in line)
    row = next(line for line in lines if line.startswith(" 1 gelu"))
    for name, value in (
        ("calls", "6"),
        ("before", "8,820"),
        ("share", "20.0%"),
        ("after", "1,310"),
        ("floor", "1,040"),
    ):
        end = head.index(name) + len(name)
        assert row[:end].endswith(f" {value}"), name


def test_a_long_task_name_is_never_cut_on_the_terminal(report: Report) -> None:
    name = "residual_rms_norm_with_rotary_embedding_1"
    long = replace(report, rows=(replace(report.rows[0], task=name), *report.rows[1:]))
    lines = shown(long, 100).splitlines()
    assert f" 1 {name}" in lines
    assert lines[lines.index(f" 1 {name}") + 1].split()[:2] == ["6", "8,820"]


def test_a_wide_terminal_has_the_intervals_beside_their_ratios(report: Report) -> None:
    assert "6.73x [6.52, 6.94]  1.31x [1.27, 1.35]" in shown(report, 160)


@pytest.mark.parametrize(
    "text", ["6.73x", "1.171x", "C++, one pass", "dropout", "left-padded", "36,864", "patched.load()"]
)
def test_the_terminal_form_holds_what_was_promised(report: Report, text: str) -> None:
    assert text in shown(report, 100)


def test_brackets_in_names_are_not_taken_for_styles(report: Report) -> None:
    assert "[bold]x[/bold]" in shown(replace(report, model="[bold]x[/bold]"), 100)


def test_no_escape_sequence_of_a_name_reaches_the_terminal(report: Report) -> None:
    assert "\x1b" not in shown(hostile(report), 100)


@pytest.mark.parametrize("change", [hostile, bare, empty])
def test_every_kind_of_report_has_every_form(report: Report, change: object) -> None:
    assert callable(change)
    changed = change(report)
    assert shown(changed, 100)
    assert markdown(changed)
    Page(html(changed))


def test_markdown_tables_keep_their_columns_whatever_the_names(report: Report) -> None:
    text = markdown(hostile(report))
    tables = re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE)
    assert len(tables) == 7
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1, table
    assert "<script>" not in text


def test_the_page_asks_for_nothing(report: Report) -> None:
    page = Page(html(report))
    assert not [tag for tag, _ in page.elements if tag in ("link", "img", "iframe", "object", "form", "base")]
    for tag, attrs in page.elements:
        for name in ("src", "href", "action", "xlink:href"):
            assert not attrs.get(name) or (attrs[name] or "").startswith("#"), (tag, attrs)
    assert "url(" not in html(report)
    assert "@import" not in html(report)


def test_a_module_named_like_a_script_is_only_a_name(report: Report) -> None:
    page = Page(html(hostile(report)))
    assert sum(tag == "script" for tag, _ in page.elements) == 1
    assert not [attrs for _, attrs in page.elements if any(name.startswith("on") for name in attrs)]
    assert "alert(1)" in "".join(page.text)


def test_text_in_an_attribute_cannot_leave_it() -> None:
    assert element("a", "x", aria_label='" onclick="y') == '<a aria-label="&quot; onclick=&quot;y">x</a>'


def test_a_name_like_a_slot_of_the_template_is_not_filled_in(report: Report) -> None:
    page = Page(html(replace(report, model="{{js}}")))
    assert "{{js}}" in "".join(page.text)
    assert sum(tag == "script" for tag, _ in page.elements) == 1


def test_the_page_allows_its_own_script_and_no_other(report: Report) -> None:
    text = html(report)
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = next(a["content"] for tag, a in Page(text).elements if tag == "meta" and a.get("http-equiv"))
    assert policy is not None
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy


def test_links_in_the_page_lead_somewhere_and_ids_are_unique(report: Report) -> None:
    page = Page(html(report))
    assert len(page.ids()) == len(set(page.ids()))
    targets = {(attrs["href"] or "")[1:] for tag, attrs in page.elements if tag == "a"}
    assert targets
    assert targets <= set(page.ids())


def figures(report: Report) -> list[ET.Element]:
    return [ET.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", html(report), re.DOTALL)]


@pytest.mark.parametrize("change", [None, hostile, bare])
def test_every_figure_is_well_formed_named_and_described(report: Report, change: object) -> None:
    changed = change(report) if callable(change) else report
    assert figures(changed)
    for svg in figures(changed):
        assert svg.get("role") == "img"
        assert svg[0].tag == "title"
        assert svg[0].text
        assert svg[1].tag == "desc"
        assert svg[1].text


def test_nothing_is_drawn_outside_its_figure(report: Report) -> None:
    for svg in figures(report):
        _, _, width, height = map(float, (svg.get("viewBox") or "").split())
        for node in svg.iter():
            for name, limit in (
                ("x", width),
                ("cx", width),
                ("x1", width),
                ("x2", width),
                ("y", height),
                ("cy", height),
            ):
                assert 0.0 <= float(node.get(name, 0.0)) <= limit, ET.tostring(node)


def test_every_attempt_is_drawn_once_and_a_rejection_tells_its_reason(report: Report) -> None:
    said = [t.text or "" for svg in figures(report) for t in svg.iter("title") if (t.text or "").startswith("attempt ")]
    assert len(said) == sum(len(story.points) for story in report.stories) == 40
    assert any("rejected, integrity: writes to its input x" in text for text in said)


def test_ops_beyond_the_palette_are_gathered_and_nothing_is_lost(report: Report) -> None:
    before = (*report.before, *(Bar(f"small {n}", 10.0) for n in range(6)))
    gathered = steps(before, report.after)
    assert len(gathered) == 9
    assert gathered[-1].label == "other"
    assert sum(s.before_us or 0.0 for s in gathered) == pytest.approx(sum(bar.us for bar in before))
    assert sum(s.change_us for s in gathered) == pytest.approx(31_050 - sum(bar.us for bar in before))


@pytest.mark.parametrize(
    ("low", "high", "log"), [(0.0, 44.98, False), (0.97, 1.46, False), (0.3, 420.0, True), (11, 19, True)]
)
def test_ticks_are_few_and_inside_their_scale(low: float, high: float, log: bool) -> None:
    scale = Scale(low, high, 0.0, 100.0, log=log)
    ticks = scale.ticks(5)
    assert 2 <= len(ticks) <= 10
    assert all(-0.2 <= scale(tick) <= 100.2 for tick in ticks)
    assert ticks == sorted(set(ticks))


def test_the_roofline_moves_a_task_up_by_what_it_gained(report: Report) -> None:
    gelu = next(p for p in points(report) if p.task == "gelu")
    assert gelu.before == 5.3  # the story's own figure, untouched
    assert gelu.after == pytest.approx(5.3 * 8820 / 1310)
    assert next(p for p in points(report) if p.task == "linear").after is None


def test_both_stacks_of_the_waterfall_share_one_scale(report: Report) -> None:
    (svg,) = (f for f in figures(report) if "The step before" in (f[0].text or ""))
    stack = [r for r in svg.iter("rect") if r.get("height") == "22"]
    before, after = ([float(r.get("width", 0)) for r in stack if r.get("y") == y] for y in ("34", "64"))
    assert len(before) == len(after) == 8
    assert sum(after) / sum(before) == pytest.approx(31_050 / 44_100, rel=1e-3)


def test_a_page_without_kernels_shows_where_the_time_went_all_the_same(report: Report) -> None:
    page = "".join(Page(html(bare(report))).text)
    assert "Where the time went" in page
    assert "There is no step after" in page
    assert "Nothing was exported" in page


def test_a_stopped_run_says_so_in_every_form(report: Report) -> None:
    stopped = replace(report, complete=False)
    for text in (shown(stopped, 100), markdown(stopped), "".join(Page(html(stopped)).text)):
        assert text.index("Partial report") < text.index("Per op" if "Per op" in text else "Op by op")


def test_what_was_not_measured_is_a_dash_in_the_table(report: Report) -> None:
    line = next(line for line in markdown(report).splitlines() if line.startswith("| 6 | linear"))
    assert line.count("| \N{EN DASH} ") == 4


def test_cpp_inside_a_raw_string_is_marked_as_cpp() -> None:
    marked = highlight('S = r"""\nfor (int i = 0; i < n; ++i) { y[i] = x[i]; }  // all\n"""\n')
    assert '<span class="k">for</span>' in marked
    assert '<span class="c">// all</span>' in marked
    assert "i &lt; n" in marked


def test_highlighting_loses_no_character(report: Report) -> None:
    kernel = report.stories[0].kernel
    assert kernel is not None
    for source in (kernel, '"""open', "x = 'it\\'s' # \"\n", "a < b && c > d", "def ("):
        page = HTMLParserText(highlight(source))
        assert page.got == source


class HTMLParserText(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.got = ""
        self.feed(text)
        self.close()

    def handle_data(self, data: str) -> None:
        self.got += data


def test_write_leaves_three_files_and_the_record_loads_again(report: Report, tmp_path: Path) -> None:
    paths = write(report, tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["report.html", "report.json", "report.md"]
    again = Report.load(paths[0])
    assert again == report
    assert html(again, tmp_path) == paths[2].read_text(encoding="utf-8")


def test_a_page_needs_no_torch() -> None:
    code = "import sys; import hotswap.integrator.report.render; assert 'torch' not in sys.modules, 'torch'"
    subprocess.run([sys.executable, "-c", code], check=True)
