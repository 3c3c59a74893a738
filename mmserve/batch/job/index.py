"""The job on disk: `<output>.progress`, one SQLite file with one writer.

    rows       one entry a line: content, digest, place in the plan, records due
    records    one entry a record that is written: whose it is, its line of output
    settings   what the answers depend on, besides the rows

All that is done before `commit` is one transaction, so a run that is refused or killed before
its first question leaves the file as it was. Behind it each `write` is a transaction.
"""

from __future__ import annotations

import contextlib
import errno
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mmserve.batch.job.kept import Kept
from mmserve.batch.job.route import Route
from mmserve.core import BadRequest, Busy, MmserveError

__all__ = ["JobIndex", "RowEntry", "disk_told"]

_VERSION = 1
_TABLES = """
CREATE TABLE rows(
    line INTEGER PRIMARY KEY, content BLOB, digest BLOB NOT NULL,
    num_questions INTEGER NOT NULL, num_samples INTEGER NOT NULL,
    group_id BLOB, route BLOB, work INTEGER NOT NULL);
CREATE TABLE records(
    line INTEGER, question_index INTEGER, sample_index INTEGER,
    asked BLOB NOT NULL, is_error INTEGER NOT NULL, content BLOB,
    PRIMARY KEY(line, question_index, sample_index));
CREATE TABLE settings(name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""
_NAMES = ("rows", "records", "settings")
_FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class RowEntry:
    """A row, or a line that is none, as the index holds it; `route` is None for a fault."""

    line: int
    content: bytes = field(repr=False)
    digest: bytes
    num_questions: int
    num_samples: int
    route: Route | None


class JobIndex:
    """An open, locked index, for one thread; close it.

    What its methods raise when the disk refuses or the file is damaged, `disk_told` translates.
    Raises Busy if another run has it open; BadRequest if the file is no index.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._db = _open_locked(path)
        try:
            self._db.execute("BEGIN IMMEDIATE")
            (version,) = self._db.execute("PRAGMA user_version").fetchone()
            if version not in (0, _VERSION):
                raise _foreign(path, f"it is of another version, {version}")
            self.is_new = version == 0
            if self.is_new:
                self.clear()
        except BaseException:
            self._db.close()
            raise

    # --- before the first question -----------------------------------------------------------

    def clear(self) -> None:
        """Forget everything. Changes: the index."""
        for name in _NAMES:
            self._db.execute(f"DROP TABLE IF EXISTS {name}")
        for statement in _TABLES.split(";"):
            self._db.execute(statement)
        self._db.execute(f"PRAGMA user_version = {_VERSION}")

    @property
    def settings(self) -> dict[str, object]:
        """What the answers depend on, as the run before had it. Pure."""
        found = self._db.execute(
            "SELECT name, value FROM settings WHERE name != ?", [_FINISHED]
        )
        return {name: json.loads(value) for name, value in found}

    def put_settings(self, settings: Mapping[str, object]) -> None:
        """Note what the answers depend on. Changes: the settings of these names."""
        values = [(name, json.dumps(value)) for name, value in settings.items()]
        self._db.executemany("INSERT OR REPLACE INTO settings VALUES (?, ?)", values)

    @property
    def is_unfinished(self) -> bool:
        """Whether it holds records of a run that did not come to its end. Pure."""
        is_finished = self._db.execute("SELECT 1 FROM settings WHERE name = ?", [_FINISHED])
        return not is_finished.fetchone() and self._count("records") > 0

    def adopt(self, kept: Kept) -> bool:
        """Take in a record found in the output; False if the index has another in its place.

        Changes: the records.
        """
        found = self._db.execute(f"SELECT asked FROM records WHERE {_KEY}", kept.key).fetchone()
        if found is not None and found[0] != kept.asked:
            return False
        self._put(kept)
        return True

    def drop_lost(self) -> None:
        """Forget records whose content is nowhere. Changes: the records."""
        self._db.execute("DELETE FROM records WHERE content IS NULL")

    def drop_errors(self) -> None:
        """Forget error records, so that their questions are asked again. Changes: records."""
        self._db.execute("DELETE FROM records WHERE is_error")

    @contextlib.contextmanager
    def new_rows(self) -> Iterator[None]:
        """Rows put inside take the place of those before, which `old_row` still gives."""
        self._db.execute("ALTER TABLE rows RENAME TO old_rows")
        self._db.execute(_TABLES.split(";")[0])
        yield
        self._db.execute("DROP TABLE old_rows")

    def put_row(self, entry: RowEntry) -> None:
        """Note a row. Changes: the rows."""
        route = entry.route
        self._db.execute(
            "INSERT INTO rows VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                entry.line,
                entry.content,
                entry.digest,
                entry.num_questions,
                entry.num_samples,
                route.group_id if route else None,
                route.key if route else None,
                route.work if route else 0,
            ),
        )

    def old_row(self, line: int, content: bytes) -> RowEntry | None:
        """What the run before knew of a line, with this content. Pure."""
        found = self._db.execute(
            "SELECT digest, num_questions, num_samples, group_id, route, work FROM old_rows"
            " WHERE line = ?",
            [line],
        ).fetchone()
        if found is None:
            return None
        digest, num_questions, num_samples, group_id, key, work = found
        route = None if group_id is None else Route(group_id, key, work)
        return RowEntry(line, content, digest, num_questions, num_samples, route)

    def asked(self, line: int) -> list[tuple[int, bytes]]:
        """(question index, digest of what was asked) of a line's records. Pure."""
        return self._db.execute(
            "SELECT question_index, asked FROM records WHERE line = ?", [line]
        ).fetchall()

    def num_strays(self) -> int:
        """Records of questions that are not in the input. Pure."""
        (num,) = self._db.execute(
            "SELECT COUNT(*) FROM records k LEFT JOIN rows r USING (line) WHERE r.line IS NULL"
            " OR k.question_index >= r.num_questions OR k.sample_index >= r.num_samples"
        ).fetchone()
        return int(num)

    def commit(self) -> None:
        """Make all of it last. Changes: the file. Once."""
        if self._db.in_transaction:
            self._db.execute("DELETE FROM settings WHERE name = ?", [_FINISHED])
            self._db.execute("COMMIT")

    # --- the job -----------------------------------------------------------------------------

    @property
    def num_due(self) -> int:
        """Records that the whole input has. Pure."""
        found = self._db.execute("SELECT SUM(num_questions * num_samples) FROM rows").fetchone()
        return int(found[0] or 0)

    @property
    def num_kept(self) -> tuple[int, int]:
        """Records with an answer and with an error. Pure."""
        total, errors = self._db.execute(
            "SELECT COUNT(*), SUM(is_error) FROM records"
        ).fetchone()
        return total - (errors or 0), errors or 0

    def records_of(self, line: int) -> dict[tuple[int, int], tuple[bool, bytes]]:
        """(is error, content) of a line's records by question and sample index. Pure."""
        found = self._db.execute(
            "SELECT question_index, sample_index, is_error, content FROM records"
            " WHERE line = ?",
            [line],
        )
        return {(index, sample): (bool(bad), content) for index, sample, bad, content in found}

    def write(self, records: Iterable[Kept]) -> None:
        """Put records on disk, all or none. Changes: the records, the file."""
        self._db.execute("BEGIN")
        for kept in records:
            self._put(kept)
        self._db.execute("COMMIT")

    def lines(self) -> Iterator[bytes]:
        """Every record's line of output, in the order of the input."""
        found = self._db.execute(
            "SELECT content FROM records ORDER BY line, question_index, sample_index"
        )
        for (content,) in found:
            yield content

    def finish(self, *, is_kept_elsewhere: bool) -> None:
        """Note the end of the run, and let go of contents that the output holds too.

        Changes: the file, which shrinks. Idempotent.
        """
        self._db.execute("BEGIN")
        self.put_settings({_FINISHED: True})
        self._db.execute("UPDATE rows SET content = NULL WHERE content IS NOT NULL")
        if is_kept_elsewhere:
            self._db.execute("UPDATE records SET content = NULL")
        self._db.execute("COMMIT")
        with contextlib.suppress(sqlite3.OperationalError):  # a full disk only leaves it large
            self._db.execute("VACUUM")

    def query(self, statement: str, values: Iterable[object] = ()) -> sqlite3.Cursor:
        """For the plan: a statement on the rows and records, or on tables of its own."""
        return self._db.execute(statement, tuple(values))

    def close(self) -> None:
        """Take back what is not committed and give the lock back. Idempotent."""
        self._db.close()

    def discard(self) -> None:
        """Close an index in which nothing was committed; its file goes if this made it."""
        if self.is_new:
            self._db.rollback()
            self._db.execute("PRAGMA journal_mode = DELETE")  # the log beside it goes
            self.path.unlink(missing_ok=True)
        self.close()

    def _put(self, kept: Kept) -> None:
        self._db.execute(
            "INSERT OR REPLACE INTO records VALUES (?, ?, ?, ?, ?, ?)",
            (*kept.key, kept.asked, kept.is_error, kept.content),
        )

    def _count(self, table: str) -> int:
        (num,) = self._db.execute(f"SELECT COUNT(*) FROM {table}").fetchone()
        return int(num)


_KEY = "line = ? AND question_index = ? AND sample_index = ?"


def _open_locked(path: Path) -> sqlite3.Connection:
    """The file, created if missing, with the only lock on it."""
    with disk_told(path):
        db = sqlite3.connect(path, timeout=0, isolation_level=None)
    try:
        with disk_told(path):
            db.execute("PRAGMA locking_mode = EXCLUSIVE")
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute("BEGIN IMMEDIATE")
            db.execute("COMMIT")
    except (MmserveError, OSError):
        db.close()
        raise
    return db


def _foreign(path: Path, reason: str) -> BadRequest:
    return BadRequest(
        f"{path} does not tell how far the run got: {reason}",
        field="output",
        reason="foreign",
        hint="delete it: --resume then goes by the records of a JSON-lines output",
    )


def _busy(path: Path) -> Busy:
    return Busy(
        f"another run is writing {path}",
        retry_after_s=60,
        hint="wait for it to end, or give another output file",
    )


@contextlib.contextmanager
def disk_told(path: Path) -> Iterator[None]:
    """What SQLite cannot do with an index: an OSError, Busy or BadRequest with its name."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            raise _busy(path) from error
        raise OSError(errno.EIO, str(error), str(path)) from error
    except sqlite3.DatabaseError as error:
        raise _foreign(path, str(error)) from error
