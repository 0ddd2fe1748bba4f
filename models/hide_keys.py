"""Keep keys out of what is written, shown or sent: the values of environment variables that are named like secrets."""

from __future__ import annotations

import os
import re

_NAMED_LIKE_ONE = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL", re.IGNORECASE)
# Shorter values ("1", "true", "none") stand in texts by chance.
_LEAST = 8
_SHAPED_LIKE_ONE = re.compile(
    r"\b(?:sk|pk|rk|gsk|xai)-[A-Za-z0-9_-]{8,}|\bhf_[A-Za-z0-9]{30,}|\bBearer\s+[A-Za-z0-9._~+/=-]{8,}"
)
HIDDEN = "[secret]"


def scrub(text: str) -> str:
    """Return `text` with every secret of this process's environment, and whatever is shaped like a key, hidden."""
    values = [v for n, v in os.environ.items() if _NAMED_LIKE_ONE.search(n) and len(v) >= _LEAST]
    for value in sorted(values, key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    return _SHAPED_LIKE_ONE.sub(HIDDEN, text)
