"""The one tree of errors, each with the exit code the command line ends with.

HotswapError
├── VerificationFailed      1  the patched model's outputs are not the model's
├── CandidateRejected       1  a candidate offered for submission did not pass the judge
├── ModelRaised             1  the user's model raised while it ran
├── SpecError               2  a model spec, flag or setting that means nothing here
├── InputError              2  example inputs that do not fit the model
├── EnvironmentMissing      3  a dependency, compiler or device is absent
├── ResourceExhausted       3  memory or disk ran out
├── RecordError             4  a file of ours is unreadable, truncated or newer
└── RecordLocked            4  another process owns the run directory
Interrupted               130  stopped by the user; what is on disk is valid

A message says what, where, expected, got and what to do, in one line.
"""

from __future__ import annotations


class HotswapError(Exception):
    """Base of all errors that end a command with one clear line."""

    exit_code = 1


class VerificationFailed(HotswapError):
    """The patched model does not reproduce the model it was made from."""


class CandidateRejected(HotswapError):
    """A candidate that somebody asked to submit was not accepted."""


class ModelRaised(HotswapError):
    """The user's model raised; the original exception is the cause."""


class SpecError(HotswapError):
    """A model spec, flag or setting that cannot be understood."""

    exit_code = 2


class InputError(HotswapError):
    """Example inputs do not fit the model's forward."""

    exit_code = 2


class EnvironmentMissing(HotswapError):
    """Something this machine must have is not there."""

    exit_code = 3


class ResourceExhausted(HotswapError):
    """Memory or disk ran out."""

    exit_code = 3


class RecordError(HotswapError):
    """A record on disk cannot be read."""

    exit_code = 4


class RecordLocked(RecordError):
    """Another process is writing to this run."""


class Interrupted(HotswapError):
    """The user stopped the work; finished parts are on disk."""

    exit_code = 130
