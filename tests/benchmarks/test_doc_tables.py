"""The figures of README and docs are those of the result files."""

from __future__ import annotations

import pytest

from hotswap.benchmarks.doc_tables import PAGES, ROOT, TABLES, filled


@pytest.mark.parametrize("page", PAGES)
def test_every_table_of_a_page_is_what_its_result_file_says(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert filled(text) == text, "run `python benchmarks/doc_tables.py`"


def test_a_figure_changed_by_hand_is_written_over_and_the_text_around_it_stays() -> None:
    page = "before\n<!-- table: cpu kernels -->\n| rmsnorm | 99.00x |\n<!-- end -->\nbehind\n"
    assert filled(page) == f"before\n<!-- table: cpu kernels -->\n{TABLES['cpu kernels']()}\n<!-- end -->\nbehind\n"


def test_a_page_cannot_ask_for_a_table_that_nobody_makes() -> None:
    with pytest.raises(KeyError, match="dreams"):
        filled("<!-- table: dreams -->\n<!-- end -->\n")


def test_every_table_stands_on_a_page() -> None:
    text = "".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
    assert [name for name in TABLES if f"<!-- table: {name} -->" not in text] == []
