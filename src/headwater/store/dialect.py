"""Where databases differ: the interface between the shared store and one database.

`Session` executes the shared statements, which are written in SQLite's SQL. `Dialect` has what the shared code cannot
express: connections and transactions, the SQL of tables and rows, and the sandbox for SQL of users. `StateSql` is the
same for operator state.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:  # the modules below import `Session` from here
    from collections.abc import Callable, Iterable, Sequence
    from threading import Event

    import pyarrow as pa

    from headwater.log.notifier import PollableWaiter
    from headwater.sql.guard import StoreEngine
    from headwater.store.changelog import ChangeSet
    from headwater.store.commit.commit import Commit, ViewTable
    from headwater.store.protocol import QueryLimits, SqlResult, Stager, TableRows

__all__ = ["Cursor", "Dialect", "RowsReader", "Session", "StateEntry", "StateSql", "TableSql", "ViewWriter"]

_T = TypeVar("_T")
_S = TypeVar("_S", bound="Session")
_S_contra = TypeVar("_S_contra", bound="Session", contravariant=True)
StateEntry = tuple[bytes, bytes, bytes | None, int]
"""Key, name and value of an entry of operator state, and the number of keys in the value."""
RowsReader: TypeAlias = "Callable[[ViewTable, Callable[[str], Iterable[pa.Table]]], pa.Table]"
"""Reads a view, by a function that runs a SELECT and returns its rows in chunks."""


class Cursor(Protocol):
    """The result of a statement."""

    @property
    def rowcount(self) -> int:
        """How many rows it changed."""

    def fetchone(self) -> Any:
        """Returns the next row, or None."""

    def fetchall(self) -> list[Any]:
        """Returns all rows that are left."""


class Session(Protocol):
    """Executes statements in the transaction of its owner."""

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> Cursor:
        """Execute one statement; `?` is a parameter."""

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> Any:
        """Execute one statement for each of these rows."""

    def execute_raw(self, statement: str, /) -> None:
        """Execute a statement as it is. Statements with names of users need this: a name may contain `?`."""

    def pipeline(self) -> AbstractContextManager[Any]:
        """Returns a context in which statements are sent without waiting for the reply to each."""


class ViewWriter(Protocol[_S_contra]):
    """Writes the rows of one commit to the table of a view. Its construction converts and checks the rows."""

    def prepare(self, session: _S_contra) -> None:
        """Prepare the connection, before the transaction begins."""

    def stage(self, session: _S_contra) -> None:
        """Send the rows, in the transaction, before it locks the query."""

    def apply(self, session: _S_contra, watermarks: tuple[int | None, int] | None) -> ChangeSet:
        """Write the rows and return what changed, in the transaction that holds the query's lock.

        Args:
            session: The session on which the rows were staged.
            watermarks: The watermark before and now, to find the rows that became final.
        """

    def finish(self, session: _S_contra) -> None:
        """Remove what was staged for this batch, also if the batch was committed before."""


class StateSql(Protocol[_S_contra]):
    """Reads and writes entries of operator state. A space is given by its number."""

    def values(
        self, session: _S_contra, space: int, keys: Sequence[bytes], names: Sequence[bytes]
    ) -> list[bytes | None]:
        """Returns the values of many entries, in the order requested; None for a missing entry."""

    def entries(self, session: _S_contra, space: int, keys: Sequence[bytes]) -> Iterable[tuple[bytes, bytes, bytes]]:
        """Returns key, name and value of all entries of these keys; the entries of a key are in order of name."""

    def write(self, session: _S_contra, space: int, puts: list[StateEntry], deletes: list[tuple[bytes, bytes]]) -> None:
        """Insert or replace entries, and delete others by key and name."""


@dataclass(frozen=True)
class TableSql:
    """The parts of statements about views by which databases differ.

    Attributes:
        table_schema: The prefix of the tables of views.
        view_schema: The prefix of the SQL views that readers use.
        first_column: A column before those of the view.
        table_options: Options of a table.
        unique_options: Options of the unique index over the key.
        sort_by_key: Whether reads sort by the key, because the database returns rows in no stable order.
    """

    table_schema: str = ""
    view_schema: str = ""
    first_column: str = ""
    table_options: str = ""
    unique_options: str = ""
    sort_by_key: bool = False


class Dialect(Protocol[_S]):
    """One database: its connections, and the SQL by which it differs. Its construction migrates the tables."""

    engine: StoreEngine
    table_sql: TableSql
    state: StateSql[_S]

    # -- connections -----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close files and connections."""

    def read(self, work: Callable[[_S], _T]) -> _T:
        """Run statements that need no common snapshot. They see everything that this process has written."""

    def read_snapshot(self, work: Callable[[_S], _T]) -> _T:
        """Run statements that all see one snapshot of the store. They never wait for a commit."""

    def write(self, work: Callable[[_S], _T], before: Callable[[_S], None] | None = None) -> _T:
        """Run one transaction, then wake all notifiers of `watch`.

        Args:
            work: The transaction. It must be idempotent: it runs again if the connection is lost, because nobody knows
                then whether it was committed.
            before: Runs on the same connection before the transaction begins.
        """

    def watch(self) -> PollableWaiter:
        """Returns a notifier for every write to the store, by any process."""

    def table_sizes(self) -> dict[str, int] | None:
        """Returns the bytes of each table with its indexes; None if that would take long. Takes no lock."""

    # -- commits ---------------------------------------------------------------------------------------------------

    def open_epoch(self, query: str) -> int:
        """Open a new epoch of this query. Ends the transaction of a runner that sleeps with the query locked."""

    def lock_query(self, session: _S, query: str) -> None:
        """Exclude other writers of this query until the transaction ends."""

    def view_writer(self, table: ViewTable, commit: Commit) -> ViewWriter[_S]:
        """Returns a writer for the rows of a commit.

        Raises:
            KeyNotUniqueError: Two rows, or a row and a delete, have one key.
            BadTypeError: The rows do not have the view's columns.
        """

    def stager(self) -> Stager | None:
        """Returns a stager for workers with large batches; None if workers cannot reach the store."""

    # -- tables and rows -------------------------------------------------------------------------------------------

    def column_type(self, kind: pa.DataType) -> str:
        """Returns the type of a column for CREATE TABLE."""

    def check_table(self, session: _S, table: ViewTable, *, exists: bool) -> None:
        """Refuse a table that this database cannot hold, or an existing one that others have altered.

        Raises:
            BadNameError: The name of the view is too long, or differs from another one only by case.
            BadTypeError: A column cannot have its name.
            SchemaConflictError: The existing table has other columns than the view.
        """

    def key_condition(self, table: ViewTable, key: pa.Table) -> tuple[str, list[Any]]:
        """Returns the condition that finds the row with this key, and the values of its parameters."""

    def fetch_rows(self, session: _S, table: ViewTable, select: str, values: Sequence[Any]) -> pa.Table:
        """Returns the rows of a SELECT over all stored columns of a view."""

    # -- SQL of users ----------------------------------------------------------------------------------------------

    def query_rows(self, name: str, read: RowsReader, limits: QueryLimits, cancel: Event | None) -> pa.Table:
        """Read a view in the sandbox, for a user's condition or order.

        Args:
            name: The view.
            read: Returns the rows. It is given the version of the view that readers see, and a function that runs a
                SELECT over all stored columns and returns its rows in chunks. It may be called again if the view is
                replaced meanwhile.
            limits: The limits of the query.
            cancel: An event that ends the query when set, from any thread.

        Raises:
            UnknownViewError: There is no such view.
            BadQueryError: The query exceeds a limit.
        """

    def query(
        self,
        text: str,
        parameters: Sequence[Any],
        limits: QueryLimits,
        cancel: Event | None,
        tables: Sequence[TableRows] = (),
    ) -> SqlResult:
        """Returns the result of one SELECT of a user; `?` is a parameter.

        Args:
            text: The statement.
            parameters: The values of its parameters.
            limits: The limits of the query.
            cancel: An event that ends the query when set, from any thread.
            tables: Tables outside of the store, which the query can read like views.

        Raises:
            BadQueryError: The text is invalid, uses something forbidden, or exceeds a limit. `data` has `relation` if
                the text names something that is neither a view nor one of these tables.
        """
