"""The command `hotswap`: find the command asked for, run it, and turn what it raised into one line and an exit code."""

from __future__ import annotations

import errno
import importlib
import logging
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

import click

from ..models.errors import HotswapError, Interrupted
from ..models.settings import variable
from ..models.suggest import did_you_mean

LOGGER = logging.getLogger("hotswap")

# Names and help without importing a command: `hotswap --help` must not wait for any of them.
COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("Make it faster", "profile, extract, optimize and integrate MODEL: the main job"),
    "resume": ("Make it faster", "continue a run that was stopped, repeating nothing"),
    "profile": ("One stage each", "where MODEL spends its time"),
    "extract": ("One stage each", "cut the hot regions of MODEL out as standalone tasks"),
    "optimize": ("One stage each", "search for faster kernels for tasks"),
    "integrate": ("One stage each", "put winners into the model, verify and measure the whole"),
    "verify": ("One stage each", "check again that a patched model is still the model"),
    "report": ("Look", "show a run's report, or write it as Markdown or HTML"),
    "export": ("One stage each", "write the winners as torch ops, or as layers for Hugging Face kernels"),
    "ls": ("Look", "list runs"),
    "show": ("Look", "explain one task: what it is, its floor, what was tried"),
    "task": ("Look", "make a task, judge one candidate, submit a winner"),
    "mcp": ("Look", "let agents work on a run's tasks over MCP"),
    "bench": ("This machine", "run a benchmark suite of a checkout"),
    "env": ("This machine", "versions and hardware, to paste into an issue"),
    "config": ("This machine", "every setting, its value and where it came from"),
    "clean": ("This machine", "remove caches"),
}

EPILOG = """\b
Examples:
  hotswap run ./all-MiniLM-L6-v2 --batch 8 --seq-len 128
  hotswap run gpt2@tiny --budget 60s
  hotswap profile model.py:make --sort-by headroom

\b
Exit codes:
  0    done, "no gain found" included
  1    verification failed, candidate rejected, or the model raised
  2    a spec, flag or input that does not fit
  3    missing dependency, compiler or device; disk or memory full
  4    a record that is unreadable, truncated, newer or locked
  130  interrupted; what is on disk is valid, `hotswap resume` continues

\b
Environment:
  HOTSWAP_CACHE        where kernels, limits and winners are kept
  HOTSWAP_DEBUG=1      tracebacks and debug log, as --debug
  HOTSWAP_<SETTING>    any setting of `hotswap config`
  HF_HUB_OFFLINE=1     never ask the Hugging Face hub
  OMP_NUM_THREADS      threads of CPU kernels and of torch
  NO_COLOR             no colours
"""

DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOMEM, errno.EMFILE}


class Commands(click.Group):
    """A group that knows its commands by name and imports one only when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f".{cmd_name}", __package__).command
        if not any(p.name == "debug" for p in command.params):
            command.params.append(debug_option())
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            raise click.UsageError(f"no command {args[0]!r}{did_you_mean(args[0], COMMANDS)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title in dict.fromkeys(section for section, _ in COMMANDS.values()):
            with formatter.section(title):
                formatter.write_dl([(n, text) for n, (section, text) in COMMANDS.items() if section == title])


def debug_option() -> click.Option:
    """Return `--debug`, which every command takes wherever it stands on the line."""
    return click.Option(
        ["--debug"], is_flag=True, expose_value=False, is_eager=True, callback=_debug, help="Tracebacks and debug log."
    )


def _debug(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        LOGGER.setLevel(logging.DEBUG)


def _version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        from .. import __version__

        click.echo(f"hotswap {__version__}")
        ctx.exit()


@click.group(cls=Commands, epilog=EPILOG, params=[debug_option()], context_settings={"max_content_width": 110})
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_version, help="Print the version."
)
def command() -> None:
    """Point at a PyTorch model; get back the same model, faster, with proof.

    MODEL is a Hugging Face id or local directory, `file.py:factory`, `package.module:Class`, or a zoo name such as
    `llama-3.2-1b@tiny`. `hotswap COMMAND --help` explains a command.
    """


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; whatever happens, the user reads one line."""
    signal.signal(signal.SIGTERM, _terminated)
    _log_to_stderr()
    try:
        code = command.main(args=None if argv is None else list(argv), prog_name="hotswap", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else error.message, err=True)
        return 2
    except BaseException as error:
        # The last border: the user's model, our bugs and the machine's limits all end here as one line.
        message, code = explain(error)
        if message:
            from .console import say_error

            say_error(message)
        if debugging() and not isinstance(error, click.ClickException):
            import traceback

            traceback.print_exception(error)
        return code


def explain(error: BaseException) -> tuple[str, int]:
    """Return the line and the exit code that an exception ends the command with; an empty line says nothing."""
    if isinstance(error, SystemExit):
        return "", error.code if isinstance(error.code, int) else int(error.code is not None)
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return "interrupted; what is on disk is valid, `hotswap resume` continues a run", Interrupted.exit_code
    if isinstance(error, click.UsageError):
        where = f" (try `{error.ctx.command_path} --help`)" if error.ctx else ""
        return error.format_message() + where, 2
    if isinstance(error, click.ClickException):
        return error.format_message(), 2
    if isinstance(error, BrokenPipeError):
        # The reader of our stdout has gone (`hotswap ls | head`); Python's own flush at exit must not complain either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return "", 0
    if isinstance(error, HotswapError):
        return str(error) or type(error).__name__, error.exit_code
    if _out_of_memory(error):
        return f"out of memory ({_first_line(error)}); try a smaller --batch or --seq-len", 3
    if isinstance(error, OSError) and error.errno in DISK_ERRORS:
        where = error.filename or "the system"
        return f"{where}: {error.strerror}; free space, or choose another --out or HOTSWAP_CACHE", 3
    if isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith("hotswap"):
        return f"the package {error.name!r} is not installed; `pip install {error.name}`, or `make install`", 3
    hint = "" if debugging() else "; `--debug` shows the traceback"
    return f"unexpected {type(error).__name__}: {_first_line(error)}; this is a fault in hotswap{hint}", 1


def debugging() -> bool:
    """Whether the user asked for tracebacks, by `--debug` or HOTSWAP_DEBUG."""
    return LOGGER.isEnabledFor(logging.DEBUG)


def _out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError):
        return True
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(error, RuntimeError):
        return False
    # torch's CPU allocator raises a bare RuntimeError; only its text tells.
    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")


def _terminated(signum: int, frame: FrameType | None) -> None:
    # As Ctrl-C, so that whoever tidies up after one tidies up after the other.
    raise KeyboardInterrupt


def _log_to_stderr() -> None:
    logging.basicConfig(format="%(name)s: %(message)s", level=logging.WARNING)
    LOGGER.setLevel(logging.DEBUG if variable("HOTSWAP_DEBUG") not in (None, "0") else logging.WARNING)
