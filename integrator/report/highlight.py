"""Mark up source for reading: keywords, strings, comments and numbers of Python, and of C++ inside a raw string."""

from __future__ import annotations

import keyword
import re

from .markup import Markup, element, join

_PYTHON = re.compile(
    r"""(?P<comment>\#[^\n]*)
    |(?P<string>[rbfuRBFU]{0,2}(?:\"{3}[\s\S]*?(?:\"{3}|\Z)|'{3}[\s\S]*?(?:'{3}|\Z)|\"(?:\\.|[^\"\\\n])*\"?|'(?:\\.|[^'\\\n])*'?))
    |(?P<number>\b\d[\w.]*)
    |(?P<word>\b[A-Za-z_]\w*)""",
    re.VERBOSE,
)
_CPP = re.compile(
    r"""(?P<comment>//[^\n]*|/\*[\s\S]*?(?:\*/|\Z))
    |(?P<string>\"(?:\\.|[^\"\\\n])*\"?|'(?:\\.|[^'\\\n])*'?)
    |(?P<directive>^[ \t]*\#[^\n]*)
    |(?P<number>\b\d[\w.]*)
    |(?P<word>\b[A-Za-z_]\w*)""",
    re.VERBOSE | re.MULTILINE,
)
_CPP_WORDS = frozenset(
    """
    alignas auto bool break case const constexpr continue double else extern false float for if inline int namespace
    nullptr return sizeof static static_cast struct switch template true typedef typename unsigned using void while
    int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t size_t __restrict __global__ __device__
    """.split()  # noqa: SIM905, a list of words is read more easily than a list of strings
)
_EMBEDDED = re.compile(r"([rR]?)(\"{3}|'{3})([\s\S]*?)(\2|\Z)")
_CLASS = {"comment": "c", "string": "s", "number": "n", "directive": "d"}


def highlight(source: str) -> Markup:
    """Return Python source as escaped markup; text that is no Python comes through unchanged."""
    return _spans(source, _PYTHON, frozenset(keyword.kwlist))


def _spans(source: str, grammar: re.Pattern[str], words: frozenset[str]) -> Markup:
    parts: list[str] = []
    end = 0
    for match in grammar.finditer(source):
        parts.append(source[end : match.start()])
        parts.append(_span(match, words, python=grammar is _PYTHON))
        end = match.end()
    return join([*parts, source[end:]])


def _span(match: re.Match[str], words: frozenset[str], *, python: bool) -> str:
    text, kind = match.group(), match.lastgroup or ""
    if kind == "word":
        return element("span", text, class_="k") if text in words else text
    embedded = _EMBEDDED.fullmatch(text) if python and kind == "string" else None
    if embedded and "{" in text and ";" in text:
        prefix, quote, body, close = embedded.groups()
        quotes = (element("span", prefix + quote, class_="s"), element("span", close, class_="s"))
        return join((quotes[0], _spans(body, _CPP, _CPP_WORDS), quotes[1]))
    return element("span", text, class_=_CLASS[kind])
