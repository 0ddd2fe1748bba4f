"""Keep how far a language model got in a run, and say it in the report."""

from __future__ import annotations

from pathlib import Path

from ..optimizer.llm.service import OVER, LlmAccount

JOURNAL = "llm.jsonl"
ACCOUNT = "llm.json"


def save_account(run: Path, account: LlmAccount) -> None:
    """Write the account into the run directory."""
    account.save(run / ACCOUNT)


def llm_notes(run: Path) -> tuple[str, ...]:
    """Return the report's line on the language model; nothing where none was asked for."""
    path = run / ACCOUNT
    if not path.exists():
        return ()
    account = LlmAccount.load(path)
    answers = f"{account.usable} usable answers, {account.malformed} malformed, {account.repeated} known already"
    ended = f"; the last request failed: {account.trouble}" if account.trouble else ""
    if account.stopped not in (None, OVER):
        ended = f"; stopped: {account.stopped}"
    left = "".join(f"; given up on {task}: {reason}" for task, reason in account.given_up.items())
    return (f"language model {account.model}: {account.spent} of {account.budget}; {answers}{left}{ended}",)
