"""What capture by triggers keeps in a PostgreSQL database: a table of changes, a function, and triggers that call it.

A trigger stores each row as JSON text, with the settings of the function and not those of the program, so that the
reader gets the same values back through `json_populate_record`. Rows name their columns, so DDL needs no new trigger.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from headwater.capture.postgres.catalog import CatalogTable
from headwater.capture.postgres.connection import Connection, quote_text
from headwater.errors import BadCredentialsError, UnreachableError
from headwater.sql.identifiers import quote

__all__ = ["Identity", "TriggerOutbox", "latest", "qualify"]

_LOCK_TIMEOUT: Final = (
    "5s"  # a trigger waits for the transactions on its table, and those after it wait for the trigger
)
_FUNCTION: Final = """
CREATE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' SET datestyle = 'ISO, MDY' SET intervalstyle = 'postgres'
SET extra_float_digits = 3 SET bytea_output = 'hex' SET lc_monetary = 'C' AS $body$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO {changes} (tbl, op, after) VALUES (TG_ARGV[0]::bigint, 1, row_to_json(NEW));
    ELSIF TG_OP = 'UPDATE' THEN
        INSERT INTO {changes} (tbl, op, before, after)
            VALUES (TG_ARGV[0]::bigint, 2, row_to_json(OLD), row_to_json(NEW));
    ELSIF TG_OP = 'DELETE' THEN
        INSERT INTO {changes} (tbl, op, before) VALUES (TG_ARGV[0]::bigint, 3, row_to_json(OLD));
    ELSE
        INSERT INTO {changes} (tbl, op) VALUES (TG_ARGV[0]::bigint, 4);
    END IF;
    RETURN NULL;
END $body$
"""


def qualify(schema: str, name: str) -> str:
    """Returns a qualified name as SQL.

    Example:
        >>> qualify("public", "orders")
        '"public"."orders"'
    """
    return f"{quote(schema)}.{quote(name)}"


def latest(snapshot: str) -> int:
    """Returns the first transaction id that a database snapshot can never see.

    Example:
        >>> latest("10:20:10,14")
        20
    """
    return int(snapshot.split(":")[1])


@dataclass(frozen=True)
class Identity:
    """Which history of changes a database has.

    Attributes:
        id: Made anew with the table of changes.
        confirmed: The snapshot whose changes were removed.
    """

    id: str
    confirmed: str


class TriggerOutbox:
    """The table of changes of one capture.

    Args:
        connection: A connection; each statement is a transaction, unless the caller began one.
        schema: The schema for what capture creates.
        name: The name of the capture.
    """

    def __init__(self, connection: Connection, schema: str, name: str) -> None:
        self._connection = connection
        self._schema, self._name = schema, name
        self.changes = qualify(schema, f"{name}_changes")
        self._source = qualify(schema, f"{name}_source")
        self._function = qualify(schema, f"{name}_record")

    def execute(self, statement: str) -> psycopg.Cursor[Any]:
        """Execute a statement without parameters, in which % is an ordinary character."""
        return self._connection.execute(statement.encode())

    def identify(self) -> Identity | None:
        """Returns the identity of the history; None if there is none."""
        there = self.execute(f"SELECT to_regclass({quote_text(self._source)}) IS NOT NULL").fetchone()
        if there is None or not there[0]:
            return None
        row = self.execute(f"SELECT id, confirmed::text FROM {self._source}").fetchone()
        return None if row is None else Identity(*row)

    def begin_history(self) -> str:
        """Remove what an earlier capture left, and begin a history; returns its id.

        Raises:
            BadCredentialsError: The user may create neither the schema nor tables in it.
        """
        self.drop()
        identity = uuid.uuid4().hex
        try:
            with self._connection.transaction():
                found = self.execute(
                    f"SELECT 1 FROM pg_namespace WHERE nspname = {quote_text(self._schema)}"
                ).fetchone()
                if found is None:
                    self.execute(f"CREATE SCHEMA {quote(self._schema)}")
                self.execute(f"CREATE TABLE {self._source} (id text, confirmed pg_snapshot)")
                self.execute(f"INSERT INTO {self._source} VALUES ({quote_text(identity)}, '1:1:')")
                self.execute(
                    f"CREATE TABLE {self.changes} (seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, "
                    "xid xid8 NOT NULL DEFAULT pg_current_xact_id(), "
                    "at timestamptz NOT NULL DEFAULT clock_timestamp(), "
                    "tbl bigint NOT NULL, op smallint NOT NULL, before json, after json)"
                )
                self.execute(_FUNCTION.format(function=self._function, changes=self.changes))
        except psycopg.errors.InsufficientPrivilege as error:
            raise BadCredentialsError(
                f"the user may not create the schema {self._schema!r}, in which triggers record changes",
                detail=str(error).strip(),
                fix=f"CREATE SCHEMA {quote(self._schema)} AUTHORIZATION user_of_capture",
            ) from None
        return identity

    def has_triggers(self, table: CatalogTable) -> bool:
        """Whether both triggers are on a table, and fire."""
        names = ", ".join(quote_text(one) for one in self._trigger_names())
        row = self.execute(
            f"SELECT count(*) FROM pg_trigger WHERE tgrelid = {table.oid} AND tgname IN ({names}) "
            "AND tgenabled IN ('O', 'A')"
        ).fetchone()
        return row is not None and row[0] == 2

    def _trigger_names(self) -> tuple[str, str]:
        # Triggers fire in the order of their names: those of the program may change the row before, but none after.
        return f"zz_headwater_{self._name}_row", f"zz_headwater_{self._name}_truncate"

    def install(self, table: CatalogTable) -> None:
        """Create the triggers on a table.

        Raises:
            BadCredentialsError: The user lacks the privilege TRIGGER.
            UnreachableError: A long transaction holds the table.
        """
        name, (row, truncate) = qualify(table.schema, table.relation), self._trigger_names()
        try:
            with self._connection.transaction():
                self.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'")
                call = f"EXECUTE FUNCTION {self._function}('{table.oid}')"
                for trigger, event in ((row, "INSERT OR UPDATE OR DELETE"), (truncate, "TRUNCATE")):
                    each = "ROW" if trigger == row else "STATEMENT"
                    what = f"{quote(trigger)} AFTER {event} ON {name} FOR EACH {each}"
                    self.execute(f"CREATE OR REPLACE TRIGGER {what} {call}")
                if table.owned:  # fires also where session_replication_role is replica, as under a subscription
                    for trigger in (row, truncate):
                        self.execute(f"ALTER TABLE {name} ENABLE ALWAYS TRIGGER {quote(trigger)}")
        except psycopg.errors.InsufficientPrivilege as error:
            what = f"the user may not create triggers on {table.name}"
            fix = f"GRANT TRIGGER, SELECT ON {name} TO user_of_capture"
            raise BadCredentialsError(what, detail=str(error).strip(), fix=fix, table=table.name) from None
        except psycopg.errors.LockNotAvailable:
            what = f"a transaction holds {table.name}, so its trigger cannot be created"
            raise UnreachableError(what, detail="it is tried again", table=table.name) from None

    def confirm(self, snapshot: str) -> None:
        """Remove the changes that a delivered snapshot sees."""
        literal = f"{quote_text(snapshot)}::pg_snapshot"
        with self._connection.transaction():
            self.execute(f"DELETE FROM {self.changes} WHERE pg_visible_in_snapshot(xid, {literal})")
            self.execute(f"UPDATE {self._source} SET confirmed = {literal}")

    def drop(self) -> None:
        """Remove triggers, function and tables of this capture, and the schema if nothing else is in it."""
        with self._connection.transaction():
            there = self.execute(f"SELECT to_regclass({quote_text(self.changes)}) IS NOT NULL").fetchone()
            if there is not None and there[0]:
                self.execute(f"DROP FUNCTION IF EXISTS {self._function}() CASCADE")
                self.execute(f"DROP TABLE {self.changes}, {self._source}")

    def drop_triggers(self, tables: Sequence[CatalogTable]) -> None:
        """Remove the triggers of tables that are no longer captured."""
        for table in tables:
            for trigger in self._trigger_names():
                self.execute(f"DROP TRIGGER IF EXISTS {quote(trigger)} ON {qualify(table.schema, table.relation)}")
