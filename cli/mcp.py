"""`hotswap mcp RUN`: the desk of a run for agents that speak the Model Context Protocol, over stdin and stdout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..models.errors import EnvironmentMissing, HotswapError
from .console import note
from .options import examples
from .places import find_run

if TYPE_CHECKING:
    from mcp.server import MCPServer

    from ..integrator.desk import Desk, Tried

EXAMPLES = examples("hotswap mcp last", "hotswap mcp runs/minilm --name claude")

INSTRUCTIONS = """\
Kernel tasks cut out of a PyTorch model. list_tasks shows them by attainable gain; read_task gives a reference, its
shapes and the contract; try_candidate puts a file before the judge (seconds to a minute) and keeps the verdict on
record; history shows what was tried and why it failed; submit_candidate makes the task end with the best on record.
Only the judge decides. A rejected candidate is an answer: read its reason and try again."""


@click.command(epilog=EXAMPLES)
@click.argument("run", metavar="RUN")
@click.option("--name", default="agent", show_default=True, help="Who tries, as the ledger names it.")
@click.option("--block", "block_s", type=click.FloatRange(min=0.001), default=0.2, help="Seconds of a timed block.")
def command(run: str, name: str, block_s: float) -> None:
    """Let an agent list the tasks of RUN, read them, try candidates, see the history and submit, over MCP on stdio.

    The same as `hotswap task show|try|submit|log`: nothing it can call changes the judge, the ledger's past or a task.
    Several servers and commands may work on one run; they judge in turns.
    """
    from ..integrator.desk import Desk

    desk = Desk(find_run(run), block_s=block_s)
    server = make_server(desk, name)
    note(f"serving {desk.folder} over MCP on stdin and stdout; end it by closing stdin")
    server.run("stdio")


def make_server(desk: Desk, name: str) -> MCPServer:
    """Return the server; raise EnvironmentMissing where the SDK is not installed."""
    try:
        from mcp.server import MCPServer
    except ImportError as error:
        raise EnvironmentMissing(
            "hotswap mcp needs the MCP SDK (mcp 2 or newer), which is not installed; pip install 'hotswap[mcp]'"
        ) from error
    server = MCPServer("hotswap", instructions=INSTRUCTIONS, log_level="WARNING")

    @server.tool()
    def list_tasks() -> list[dict[str, Any]]:
        """List the run's tasks, the most attainable gain first, with how far anybody came."""
        return desk.tasks()

    @server.tool()
    def read_task(task: str) -> dict[str, Any]:
        """Read one task: its record (shapes, strides, dtypes, weights), reference, best kernel so far, and contract."""
        found: dict[str, Any] = _said(desk.read, task)
        return found

    @server.tool()
    def history(task: str) -> list[dict[str, Any]]:
        """List every attempt on a task: who, from which parent, how it ended and why."""
        found: list[dict[str, Any]] = _said(desk.history, task)
        return found

    @server.tool()
    def try_candidate(task: str, source: str, parent: str | None = None) -> dict[str, Any]:
        """Put a whole Python file before the judge; parent: hash of the candidate it was made from, if any."""
        return _plain(_said(desk.attempt, task, source, by=name, parent=parent))

    @server.tool()
    def submit_candidate(task: str, source: str, parent: str | None = None) -> dict[str, Any]:
        """Try a file, and make the task end with the best kernel on record; an error where it is rejected."""
        return _plain(_said(desk.submit, task, source, by=name, parent=parent))

    return server


def _said(function: Any, *values: Any, **named: Any) -> Any:
    """Call the desk; what it refuses reaches the agent as one line."""
    from mcp.server.mcpserver.exceptions import ToolError  # of any other error the SDK keeps the text back

    try:
        return function(*values, **named)
    except HotswapError as error:
        raise ToolError(str(error)) from error


def _plain(tried: Tried) -> dict[str, Any]:
    verdict = tried.verdict
    return {
        "accepted": verdict.accepted,
        "stage": verdict.stage,
        "reason": verdict.reason,
        "stages": [{"stage": s.stage, "passed": s.passed, "evidence": s.evidence} for s in verdict.stages],
        "us": {f"{r.case}/{a.name}": round(a.median_us, 3) for r in verdict.races for a in r.arms},
        "against_best_rival": verdict.speedup.to_dict() if verdict.speedup else None,
        "best_so_far": tried.attempt.kept,
        "judged_before": tried.known,
        "hash": tried.attempt.source_hash[:12],
        "task_ends_with": tried.winner.reason if tried.winner else None,
    }
