"""The ledger: every attempt on every task of a run, append-only, readable while it is written, whole after `kill -9`.

Rows are added and none is ever changed, which triggers in the file enforce: a source (once for each hash), an attempt
(when it begins) and its outcome (when the judge has spoken). An attempt without one was interrupted; it is listed,
and trusted by nobody.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from ..extractor.task import Task
from ..models.errors import RecordError, RecordLocked, ResourceExhausted
from ..models.record import Record
from .attempt import Attempt
from .candidate import Candidate
from .verdict import Race, Verdict

APPLICATION_ID = 0x686F7473  # "hots": tells our file from any other SQLite one
SCHEMA = 1
# Numbers are given without gaps; this many unreadable ones in a row are the end of a table, not damage in it.
LONGEST_GAP = 1000

TABLES = """
CREATE TABLE source (number INTEGER PRIMARY KEY, hash TEXT NOT NULL UNIQUE, text TEXT NOT NULL);
CREATE TABLE environment (number INTEGER PRIMARY KEY, hash TEXT NOT NULL UNIQUE, json TEXT NOT NULL);
CREATE TABLE baseline (
    number INTEGER PRIMARY KEY, fingerprint TEXT NOT NULL, race TEXT NOT NULL, environment TEXT NOT NULL,
    measured REAL NOT NULL
);
CREATE TABLE attempt (
    number INTEGER PRIMARY KEY, task TEXT NOT NULL, fingerprint TEXT NOT NULL, source TEXT NOT NULL, parent TEXT,
    proposer TEXT NOT NULL, knobs TEXT NOT NULL, environment TEXT NOT NULL, started REAL NOT NULL
);
CREATE TABLE outcome (
    number INTEGER PRIMARY KEY, verdict TEXT NOT NULL, median_us REAL, kept INTEGER NOT NULL, finished REAL NOT NULL
);
CREATE INDEX attempt_by_fingerprint ON attempt (fingerprint);
"""
NAMES = ("source", "environment", "baseline", "attempt", "outcome")
APPEND_ONLY = "\n".join(
    f"CREATE TRIGGER {name}_no_{verb} BEFORE {verb} ON {name} BEGIN SELECT RAISE(ABORT, 'append-only'); END;"
    for name in NAMES
    for verb in ("UPDATE", "DELETE")
)
ATTEMPTS = """
SELECT a.number, a.task, a.fingerprint, a.source, a.parent, a.proposer, a.knobs, a.started,
       o.finished, o.verdict, o.median_us, o.kept, e.json
FROM attempt a LEFT JOIN outcome o ON o.number = a.number LEFT JOIN environment e ON e.hash = a.environment
"""

# POSIX locks do not guard against a second writer in one process, and closing the file once frees the lock; this does.
_written_here: set[Path] = set()


class Ledger:
    """The ledger of one run, open for writing; `Ledger.read` opens it beside a writer.

    Raises RecordLocked when another writer has it open, RecordError when the file is damaged, of another kind or newer.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._lock: IO[str] | None = _lock(self.path)
        try:
            with _named_errors(self.path):
                self._db = _connect(self.path)
                _prepare(self._db, self.path)
        except BaseException:
            self._release()
            raise

    @classmethod
    def read(cls, path: Path) -> Self:
        """Open for reading only, whether or not somebody writes; writing methods raise RecordLocked."""
        if not path.is_file():
            raise RecordError(f"{path}: no ledger there; a run writes one when its search begins")
        self = cls.__new__(cls)
        self.path, self._lock = path.absolute(), None
        with _named_errors(self.path):
            self._db = _connect_to_read(self.path)
            _check(self._db, self.path)
        return self

    def begin(self, task: Task, candidate: Candidate, environment: dict[str, str]) -> int:
        """Record that an attempt starts now, and return its number."""
        with self._write() as db:
            db.execute("INSERT OR IGNORE INTO source VALUES (NULL, ?, ?)", (candidate.hash, candidate.source))
            row = db.execute(
                "INSERT INTO attempt VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    task.name,
                    task.fingerprint,
                    candidate.hash,
                    candidate.parent,
                    candidate.proposer,
                    json.dumps(candidate.knobs, sort_keys=True),
                    _environment(db, environment),
                    time.time(),
                ),
            )
            assert row.lastrowid is not None
            return row.lastrowid

    def finish(self, number: int, verdict: Verdict, *, median_us: float | None, kept: bool) -> Attempt:
        """Record what the judge said of an attempt; once this returns it survives a kill and a power cut."""
        with self._write() as db:
            body = json.dumps(verdict.to_dict(), allow_nan=False)
            db.execute("INSERT INTO outcome VALUES (?, ?, ?, ?, ?)", (number, body, median_us, kept, time.time()))
            row = db.execute(f"{ATTEMPTS} WHERE a.number = ?", (number,)).fetchone()
        return _attempt(row, self.path)

    def set_baseline(self, task: Task, race: Race, environment: dict[str, str]) -> None:
        """Record the race of the region as it is: eager against Inductor's code."""
        with self._write() as db:
            body = json.dumps(race.to_dict(), allow_nan=False)
            db.execute(
                "INSERT INTO baseline VALUES (NULL, ?, ?, ?, ?)",
                (task.fingerprint, body, _environment(db, environment), time.time()),
            )

    def baseline(self, task: Task, environment: dict[str, str]) -> Race | None:
        """Return the task's last baseline that was measured in this environment, None where there is none."""
        with _named_errors(self.path):
            row = self._db.execute(
                "SELECT race FROM baseline WHERE fingerprint = ? AND environment = ? ORDER BY number DESC LIMIT 1",
                (task.fingerprint, _environment_key(environment)),
            ).fetchone()
            return Race.from_dict(json.loads(row[0]), f"{self.path}: baseline of {task.name}") if row else None

    def attempts(self, fingerprint: str | None = None) -> tuple[Attempt, ...]:
        """Return the attempts on one task, or on all, in the order they began; the unfinished ones too."""
        where, values = ("WHERE a.fingerprint = ?", (fingerprint,)) if fingerprint else ("", ())
        with _named_errors(self.path):
            rows = self._db.execute(f"{ATTEMPTS} {where} ORDER BY a.number", values).fetchall()
        return tuple(_attempt(row, self.path) for row in rows)

    def finished(self, fingerprint: str) -> tuple[Attempt, ...]:
        """Return the attempts on one task that have a verdict: the only ones to build on."""
        return tuple(a for a in self.attempts(fingerprint) if a.verdict is not None)

    def source(self, source_hash: str) -> str:
        """Return the text of a candidate by its hash."""
        with _named_errors(self.path):
            row = self._db.execute("SELECT text FROM source WHERE hash = ?", (source_hash,)).fetchone()
        if row is None:
            raise RecordError(f"{self.path}: no source {source_hash!r}; `hotswap show` lists the hashes of each task")
        return str(row[0])

    def close(self) -> None:
        self._db.close()
        self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        if self._lock is None:
            raise RecordLocked(f"{self.path}: opened for reading; open it as Ledger(path) to write")
        with _named_errors(self.path), self._db:
            self._db.execute("BEGIN IMMEDIATE")
            yield self._db

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.close()
            _written_here.discard(self.path)

    @staticmethod
    def salvage(path: Path) -> int:
        """Replace a damaged ledger by one with every whole row of it, and return how many finished attempts that has.

        The damaged file stays beside it as `*.damaged`. Raises RecordError when nothing in it can be read.
        """
        path = path.absolute()
        with _lock(path), tempfile.TemporaryDirectory(dir=path.parent, prefix=".salvage-") as folder:
            _written_here.discard(path)
            copy, mended = Path(folder, "copy.db"), Path(folder, "mended.db")
            for suffix in ("", "-wal"):
                if Path(f"{path}{suffix}").exists():
                    shutil.copyfile(f"{path}{suffix}", f"{copy}{suffix}")
            with closing(_connect(mended)) as new, closing(_connect_to_salvage(copy)) as old:
                _prepare(new, mended)
                finished = _copy_whole_rows(old, new, path)
                new.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            path.replace(path.with_name(path.name + ".damaged"))
            for suffix in ("-wal", "-shm"):
                Path(f"{path}{suffix}").unlink(missing_ok=True)
            mended.replace(path)
        return finished


def _lock(path: Path) -> IO[str]:
    """Take the one writer's lock, which the system frees when its process dies in any way."""
    if path in _written_here:
        raise RecordLocked(f"{path}: this process already writes to it; close that Ledger first")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.with_name(path.name + ".lock").open("a+", encoding="utf-8")
    except OSError as error:
        raise ResourceExhausted(f"{path}: cannot be written ({error.strerror}); choose another --out") from error
    try:
        # lockf, not flock: a forked worker that outlives us must not go on holding it.
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.seek(0)
        owner = file.read().strip() or "unknown"
        file.close()
        raise RecordLocked(
            f"{path}: process {owner} is writing to this run; wait for it or stop it, or choose another --out"
        ) from error
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    _written_here.add(path)
    return file


def _connect(path: Path) -> sqlite3.Connection:
    # isolation_level None leaves BEGIN to us. The search's thread is not always the opener's.
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30.0)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        # NORMAL already survives kill -9 (what is written is in the system's cache); FULL also survives a power cut.
        # It costs one fsync an outcome, milliseconds against the half second and more that a verdict takes.
        db.execute("PRAGMA synchronous = FULL")
    except BaseException:
        db.close()
        raise
    return db


def _connect_to_read(path: Path) -> sqlite3.Connection:
    # A reader shares memory with the writer through files beside the ledger; where the folder is read-only nobody
    # writes, and SQLite has to be told so.
    frozen = "" if os.access(path.parent, os.W_OK) else "&immutable=1"
    return sqlite3.connect(f"{path.as_uri()}?mode=ro{frozen}", uri=True, isolation_level=None, timeout=30.0)


def _connect_to_salvage(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None)
    # With this SQLite reads what there is of a file that is shorter than its header says.
    db.execute("PRAGMA writable_schema = ON")
    return db


def _prepare(db: sqlite3.Connection, path: Path) -> None:
    """Lay the tables in an empty file; check any other."""
    if db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        _check(db, path)
        return
    marks = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {SCHEMA};"
    db.executescript(f"BEGIN; {marks} {TABLES} {APPEND_ONLY} COMMIT;")


def _check(db: sqlite3.Connection, path: Path) -> None:
    application, version = (db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version"))
    if application != APPLICATION_ID:
        raise RecordError(f"{path}: a SQLite file, but not a ledger of hotswap")
    if version > SCHEMA:
        raise RecordError(f"{path}: schema {version} is newer than {SCHEMA}, the newest known here; update hotswap")
    problem = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    if problem != "ok":
        raise RecordError(_damaged(path, problem))


def _damaged(path: Path, problem: object) -> str:
    first = str(problem).splitlines()[0]
    return f"{path}: damaged ({first}); `hotswap resume RUN --salvage` keeps what is whole (Ledger.salvage)"


@contextmanager
def _named_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        code = error.sqlite_errorcode & 0xFF
        if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR):
            raise ResourceExhausted(f"{path}: {error}; free space or choose another --out") from error
        if code == sqlite3.SQLITE_BUSY:
            raise RecordLocked(f"{path}: {error}; another process holds it") from error
        raise RecordError(_damaged(path, error)) from error
    except sqlite3.IntegrityError:
        raise  # a caller's mistake (an attempt finished twice), no damage
    except (sqlite3.DatabaseError, json.JSONDecodeError) as error:
        raise RecordError(_damaged(path, error)) from error


def _environment(db: sqlite3.Connection, environment: dict[str, str]) -> str:
    key = _environment_key(environment)
    db.execute("INSERT OR IGNORE INTO environment VALUES (NULL, ?, ?)", (key, json.dumps(environment, sort_keys=True)))
    return key


def _environment_key(environment: dict[str, str]) -> str:
    return hashlib.sha256(json.dumps(environment, sort_keys=True).encode()).hexdigest()


def _attempt(row: tuple[Any, ...], path: Path) -> Attempt:
    number, task, fingerprint, source, parent, proposer, knobs, started, finished, verdict, median_us, kept, env = row
    where = f"{path}: attempt {number}"
    with _named_errors(path):
        return Attempt(
            number=number,
            task=task,
            fingerprint=fingerprint,
            source_hash=source,
            parent=parent,
            proposer=proposer,
            knobs=json.loads(knobs),
            started=started,
            finished=finished,
            verdict=Verdict.from_dict(json.loads(verdict), where) if verdict else None,
            median_us=median_us,
            kept=bool(kept),
            environment=json.loads(env) if env else {},
        )


def _copy_whole_rows(old: sqlite3.Connection, new: sqlite3.Connection, path: Path) -> int:
    """Copy what can be read and makes sense: sources that have their hash, attempts with a source, their outcomes."""
    rows = {name: list(_readable(old, name)) for name in NAMES}
    if not any(rows.values()):
        raise RecordError(f"{path}: nothing in it can be read; delete it, and the search starts anew")
    sources = {r[1]: r for r in rows["source"] if Candidate(r[2], proposer="", parent=None, knobs={}).hash == r[1]}
    attempts = {r[0]: r for r in rows["attempt"] if r[3] in sources}
    outcomes = [r for r in rows["outcome"] if r[0] in attempts and _reads_as(Verdict, r[1])]
    with new:
        new.execute("BEGIN IMMEDIATE")
        for name, whole in (
            ("source", sources.values()),
            ("environment", rows["environment"]),
            ("baseline", [r for r in rows["baseline"] if _reads_as(Race, r[2])]),
            ("attempt", attempts.values()),
            ("outcome", outcomes),
        ):
            for row in whole:
                new.execute(f"INSERT OR IGNORE INTO {name} VALUES ({', '.join('?' * len(row))})", row)
    return len(outcomes)


def _readable(db: sqlite3.Connection, table: str) -> Iterator[tuple[Any, ...]]:
    """Yield a table's rows that can be read, each asked for by its number: a scan would end at the first damage."""
    missing, number = 0, 0
    while missing < LONGEST_GAP:
        number, missing = number + 1, missing + 1
        try:
            row = db.execute(f"SELECT * FROM {table} WHERE number = ?", (number,)).fetchone()
        except sqlite3.DatabaseError:
            continue  # this row lies in the damage
        if row is not None:
            missing = 0
            yield row


def _reads_as(kind: type[Record], text: str) -> bool:
    try:
        kind.from_dict(json.loads(text))
    except (RecordError, ValueError):
        return False
    return True
