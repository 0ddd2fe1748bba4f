"""Replies are read strictly: one whole file or one diff that fits, and the model is told what was wrong otherwise."""

from __future__ import annotations

import pytest
from scripted import kernel, whole

from hotswap.optimizer.llm.novelty import shape_of
from hotswap.optimizer.llm.replies import MOST_BYTES, MalformedError, candidate_source

PARENT = "BLOCK = 8\n\n\ndef kernel(x):\n    y = x + 1\n    z = y * BLOCK\n    return z\n"
DIFF = (
    "```diff\n--- a\n+++ b\n@@ -4,3 +4,3 @@\n def kernel(x):\n-    y = x + 1\n+    y = x + 2\n     z = y * BLOCK\n```"
)


def test_a_whole_file_is_taken_as_it_is() -> None:
    assert candidate_source(whole(kernel(3.0)), None) == kernel(3.0)


def test_a_diff_is_applied_to_the_parent() -> None:
    assert candidate_source(DIFF, PARENT) == PARENT.replace("x + 1", "x + 2")


def test_a_hunk_whose_line_numbers_are_wrong_fits_where_its_lines_stand_once() -> None:
    assert candidate_source(DIFF.replace("-4,3", "-90,3"), PARENT) == PARENT.replace("x + 1", "x + 2")


@pytest.mark.parametrize(
    ("reply", "parent", "what"),
    [
        ("Use a larger block.", None, "no closed code block"),
        ("```python\ndef kernel(x):\n    return x\n", None, "no closed code block"),
        (whole(kernel(1.0)) + whole(kernel(2.0)), None, "exactly one"),
        ("```cpp\nint main() {}\n```", None, "exactly one"),
        ("```python\ndef kernel(x:\n```", None, "does not parse"),
        ("```python\ndef reference(x):\n    return x\n```", None, "no function `kernel`"),
        (DIFF, None, "none was shown"),
        (DIFF.replace("x + 1", "x + 9"), PARENT, "hunk 1 of the diff: its old lines are not in the file"),
        ("```diff\nnothing\n```", PARENT, "begins with 'nothing'"),
        ("```diff\n--- a\n+++ b\n```", PARENT, "no hunk"),
        (whole("#" * MOST_BYTES + "\n"), None, "at most"),
    ],
)
def test_a_malformed_reply_is_told_what_was_wrong(reply: str, parent: str | None, what: str) -> None:
    with pytest.raises(MalformedError, match=what):
        candidate_source(reply, parent)


def test_a_reply_that_was_cut_off_says_so() -> None:
    with pytest.raises(MalformedError, match="cut off"):
        candidate_source("```python\ndef kernel(x):", None, cut=True)


def test_a_hunk_that_fits_two_places_fits_none() -> None:
    twice = "def kernel(x):\n    x = x + 1\n    x = x + 2\n    x = x + 1\n    return x\n"
    hunk = "```diff\n@@ -90,1 +90,1 @@\n-    x = x + 1\n+    x = x + 3\n```"
    with pytest.raises(MalformedError, match="several places"):
        candidate_source(hunk, twice)


def test_comments_layout_and_local_names_do_not_make_a_new_program() -> None:
    one = 'SOURCE = """\nint run() { // fast\n  return 1;\n}\n"""\n\ndef kernel(x):\n    y = x + 1\n    return y\n'
    other = (
        'SOURCE = """\nint run() {\n    return 1; }\n"""\n'
        'def kernel(x):\n    "Doc."\n    # why\n    total = (x +\n        1)\n    return total\n'
    )
    assert shape_of(one) == shape_of(other)


@pytest.mark.parametrize(("old", "new"), [("x + 1", "x + 2"), ("BLOCK = 8", "BLOCK = 16"), ("return z", "return y")])
def test_what_computes_something_else_is_another_program(old: str, new: str) -> None:
    assert shape_of(PARENT) != shape_of(PARENT.replace(old, new))
