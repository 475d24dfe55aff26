"""The connections to a MariaDB server: login and queries through PyMySQL, and the stream of its binary log."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from headwater.capture.mariadb.binlog.binlog_events import EventType
from headwater.errors import (
    BadCredentialsError,
    BadSettingError,
    DamagedError,
    FencedError,
    HeadwaterError,
    MissingPackageError,
    NotCapturableError,
    SlotLostError,
    UnreachableError,
)

__all__ = ["Address", "BinlogEvent", "BinlogStream", "Connection", "parse_url", "quote_name", "quote_text"]

_REFUSED_LOGIN: Final = frozenset((1044, 1045, 1698))
_MISSING_RIGHT: Final = frozenset((1142, 1143, 1227, 1370))
_COM_BINLOG_DUMP: Final = 0x12
_COM_REGISTER_SLAVE: Final = 0x15
_MAX_PACKET: Final = 0xFFFFFF
_EVENT: Final = struct.Struct("<IBIBIIIH")  # packet length and number, status, then the header of the event
_CHUNK: Final = 1 << 18
_MAY_CHANGE: Final = frozenset((EventType.ROTATE, EventType.FORMAT_DESCRIPTION))


@dataclass(frozen=True)
class Address:
    """Where a database is, from its URL.

    Attributes:
        url: The URL without the password, for messages.
    """

    host: str
    port: int
    user: str
    password: str
    database: str
    url: str
    tls: bool = False


def parse_url(url: str) -> Address:
    """Returns the address in a URL `mariadb://USER:PASSWORD@HOST:PORT/DATABASE`; `?tls=true` asks for TLS.

    Example:
        >>> parse_url("mariadb://capture:secret@db/shop").url
        'mariadb://capture@db:3306/shop'

    Raises:
        BadSettingError: It is another kind of URL, or has no database.
        NotCapturableError: It names MySQL.
    """
    parts = urlsplit(url)
    if parts.scheme == "mysql":
        raise _refuse_mysql(f"{parts.scheme}://{parts.hostname}")
    database = unquote(parts.path.strip("/"))
    if parts.scheme != "mariadb" or not parts.hostname or not database:
        raise BadSettingError(
            f"{parts.scheme or 'the text'}://{parts.hostname or ''}{parts.path} is not the URL of a MariaDB database",
            fix="mariadb://USER:PASSWORD@HOST:3306/DATABASE",
        )
    user, port = unquote(parts.username or "root"), parts.port or 3306
    tls = parse_qs(parts.query).get("tls", ["false"])[0] == "true"
    shown = f"mariadb://{user}@{parts.hostname}:{port}/{database}"
    return Address(parts.hostname, port, user, unquote(parts.password or ""), database, shown, tls)


def _refuse_mysql(server: str) -> HeadwaterError:
    return NotCapturableError(
        f"{server} is MySQL, which cannot be captured",
        detail="its binary log has events that were never tested here; MariaDB 10.5 and later can be captured",
        fix="capture it with Debezium, and read its topic",
    )


def quote_name(name: str) -> str:
    """Returns a name as SQL of MariaDB; a dot divides database and table.

    Example:
        >>> quote_name("a`b")
        '`a``b`'
    """
    return "`" + name.replace("`", "``") + "`"


def quote_text(text: str) -> str:
    r"""Returns a text as SQL of MariaDB.

    Example:
        >>> print(quote_text("it's"))
        'it\'s'
    """
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


class Connection:
    """A session on the server: autocommit, UTC, texts in UTF-8.

    Raises:
        UnreachableError: No server answers there.
        BadCredentialsError: It refuses the login.
        NotCapturableError: It is MySQL.
    """

    def __init__(self, address: Address, *, timeout: float = 10.0) -> None:
        try:
            import pymysql
        except ImportError:
            raise MissingPackageError(
                "PyMySQL, with which MariaDB is captured, is not installed", fix="pip install 'headwater[mariadb]'"
            ) from None
        self.address = address
        self.errors = pymysql.err
        with self.translate_errors("connect"):
            self.driver: Any = pymysql.connect(
                host=address.host,
                port=address.port,
                user=address.user,
                password=address.password,
                database=address.database,
                charset="utf8mb4",
                autocommit=True,
                connect_timeout=timeout,
                ssl={} if address.tls else None,
                init_command="SET time_zone='+00:00', sql_mode='', net_write_timeout=600",
            )
        self.version: str = self.driver.get_server_info()
        if "mariadb" not in self.version.lower():
            self.close()
            raise _refuse_mysql(f"{address.url} (version {self.version})")

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Returns the rows of a statement."""
        with self.translate_errors(sql), self.driver.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())

    def settings(self, names: Sequence[str]) -> dict[str, str]:
        """Returns global variables of the server; those that it does not know are left out."""
        wanted = ", ".join(quote_text(name) for name in names)
        found = self.query(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({wanted})")
        return {name: value for name, value in found}

    def close(self) -> None:
        """End the session."""
        with contextlib.suppress(Exception):
            self.driver.close()

    @contextlib.contextmanager
    def translate_errors(self, what: str) -> Iterator[None]:
        """Raise our errors for those of the driver."""
        try:
            yield
        except (self.errors.MySQLError, OSError) as error:
            raise self.translate(error, what) from error

    def translate(self, error: Exception, what: str) -> HeadwaterError:
        """Returns our error for one of the driver."""
        code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
        text = str(error.args[1]) if len(error.args) > 1 else str(error)
        if code in _REFUSED_LOGIN:
            return BadCredentialsError(f"{self.address.url} refuses the login", detail=text)
        if code in _MISSING_RIGHT:
            return NotCapturableError(
                f"{self.address.url}: the user {self.address.user} lacks a right", detail=text, fix=_grant(self.address)
            )
        if code >= 2000 or not code or code in (1053, 1077, 1079, 1927, 1040, 1203):
            return UnreachableError(f"{self.address.url} does not answer", detail=text)
        return NotCapturableError(f"{self.address.url} refuses: {text}", detail=what[:200], number=code)


def _grant(address: Address) -> str:
    return (
        f"GRANT SELECT, REPLICATION SLAVE, BINLOG MONITOR ON *.* TO {quote_text(address.user)}@'%'  "
        f"(on the database, as its administrator)"
    )


class BinlogEvent(NamedTuple):
    """One event: its type, time, the server that wrote it, the position after it, its flags and size, and its body."""

    code: int
    seconds: int
    server: int
    end: int
    flags: int
    size: int
    body: bytes


class BinlogStream:
    """The events of a binary log from a position on, as a replica receives them.

    Args:
        connection: A session of its own; it is used for nothing else from now on.
        file: The file to begin in.
        position: The position of the first event.
        server_id: The id under which we are known as a replica.
        heartbeat: Seconds after which the server says that nothing has happened.
        patience: Seconds without a word after which the server is taken for dead.
    """

    def __init__(
        self,
        connection: Connection,
        file: str,
        position: int,
        server_id: int,
        *,
        heartbeat: float = 1.0,
        patience: float = 30.0,
    ) -> None:
        self._connection = connection
        connection.query("SET @master_binlog_checksum = @@GLOBAL.binlog_checksum")
        self._trailer = 4 if connection.settings(["binlog_checksum"])["binlog_checksum"] == "CRC32" else 0
        connection.query("SET @mariadb_slave_capability = 4")
        connection.query(f"SET @master_heartbeat_period = {int(heartbeat * 1e9)}")
        self._socket: socket.socket = connection.driver._sock
        self._rest = b""
        self._heard_at = time.monotonic()
        self._patience = patience
        self._send(_COM_REGISTER_SLAVE, struct.pack("<IBBBHII", server_id, 0, 0, 0, 0, 0, 0))
        self._read_ok()
        self._send(_COM_BINLOG_DUMP, struct.pack("<IHI", position, 0, server_id) + file.encode())

    def _send(self, command: int, data: bytes) -> None:
        with self._connection.translate_errors("read the binary log"):
            self._connection.driver._execute_command(command, data)

    def _read_ok(self) -> None:
        with self._connection.translate_errors("register as a replica"):
            self._connection.driver._read_packet()

    def read(self, timeout: float) -> list[BinlogEvent]:
        """Returns the events that have arrived; waits for the first at most `timeout` seconds.

        Raises:
            UnreachableError: The connection broke.
            SlotLostError: The server no longer has the file.
            DamagedError: A checksum does not match.
        """
        end = time.monotonic() + timeout
        while True:
            data = self._receive(max(0.0, end - time.monotonic()))
            if not data:
                self._check_alive()
                return []
            self._heard_at = time.monotonic()
            self._rest = self._rest + data if self._rest else data
            found = self._split()
            if found:
                return found

    def _receive(self, timeout: float) -> bytes:
        pending = getattr(self._socket, "pending", None)
        try:
            if not (pending and pending()) and not select.select([self._socket], [], [], timeout)[0]:
                return b""
            if len(self._rest) >= 4 and self._missing() > _CHUNK:
                data = self._receive_packet(self._missing())
            else:
                data = self._socket.recv(_CHUNK)
        except OSError as error:
            raise UnreachableError(f"{self._connection.address.url} does not answer", detail=str(error)) from None
        if not data:
            raise UnreachableError(f"{self._connection.address.url} ended the stream of its binary log")
        return data

    def _missing(self) -> int:
        return int.from_bytes(self._rest[:3], "little") + 4 - len(self._rest)

    def _receive_packet(self, size: int) -> bytes:
        """Returns the rest of a large packet: joined once, not with every piece."""
        parts = bytearray()
        while len(parts) < size:
            piece = self._socket.recv(min(size - len(parts), 1 << 20))
            if not piece:
                raise UnreachableError(f"{self._connection.address.url} ended the stream of its binary log")
            parts += piece
        return bytes(parts)

    def _split(self) -> list[BinlogEvent]:
        """Cut whole events off the bytes that have arrived."""
        data, at = self._rest, 0
        found: list[BinlogEvent] = []
        size, trailer = len(data), self._trailer
        unpack, crc32 = _EVENT.unpack_from, zlib.crc32
        make, add = tuple.__new__, found.append  # the constructor of a named tuple takes twice as long
        view = memoryview(data)
        while size - at >= 4:
            length = int.from_bytes(data[at : at + 3], "little")
            body_end = at + 4 + length
            if body_end > size:
                break
            if length == _MAX_PACKET or length < 20 or data[at + 4]:
                whole, next_at = self._unusual(data, at)
                if whole is None:
                    break
                found.append(self._parse(whole))
                at = next_at
                continue
            _, _, seconds, code, server, event_size, end, flags = unpack(data, at)
            if code in _MAY_CHANGE:
                trailer = self._trailer = _trailer_after(code, data[at + 5 : body_end])
            if trailer and crc32(view[at + 5 : body_end - 4]) != int.from_bytes(
                data[body_end - 4 : body_end], "little"
            ):
                raise _damaged(code, end)
            add(make(BinlogEvent, (code, seconds, server, end, flags, event_size, data[at + 24 : body_end - trailer])))
            at = body_end
        self._rest = data[at:]
        return found

    def _unusual(self, data: bytes, at: int) -> tuple[bytes | None, int]:
        """Returns a packet that is an error, the end, or one event in several packets."""
        parts, length = [], _MAX_PACKET
        while length == _MAX_PACKET:
            if len(data) - at < 4:
                return None, at
            length = int.from_bytes(data[at : at + 3], "little")
            if len(data) - at - 4 < length:
                return None, at
            parts.append(data[at + 4 : at + 4 + length])
            at += 4 + length
        whole = b"".join(parts)
        if whole[0] == 0xFF:
            raise self._refused(int.from_bytes(whole[1:3], "little"), whole[9:].decode("utf-8", "replace"))
        if whole[0] == 0xFE and len(whole) < 9:
            raise UnreachableError(f"{self._connection.address.url} ended the stream of its binary log")
        return whole, at

    def _parse(self, whole: bytes) -> BinlogEvent:
        seconds, code, server, size, end, flags = struct.unpack_from("<IBIIIH", whole, 1)
        stop = len(whole) - self._trailer
        if self._trailer and zlib.crc32(whole[1:stop]) != int.from_bytes(whole[stop:], "little"):
            raise _damaged(code, end)
        return BinlogEvent(code, seconds, server, end, flags, size, whole[20:stop])

    def _refused(self, number: int, text: str) -> HeadwaterError:
        url = self._connection.address.url
        if "same server_uuid/server_id" in text:
            return FencedError(
                f"{url}: another reader of this capture has connected; it goes on, and this one stops",
                detail=text,
                fix="end one of the two, or give one of the captures another name",
            )
        if number == 1236:
            return SlotLostError(f"{url} no longer has the part of its binary log that comes next", detail=text)
        if number in _MISSING_RIGHT or number in _REFUSED_LOGIN:
            return NotCapturableError(
                f"{url}: no right to read the binary log", detail=text, fix=_grant(self._connection.address)
            )
        if number in (1053, 1927, 1317):
            return UnreachableError(f"{url} ended the stream of its binary log", detail=text)
        return NotCapturableError(f"{url} refuses to send its binary log: {text}", number=number)

    def _check_alive(self) -> None:
        silent = time.monotonic() - self._heard_at
        if silent > self._patience:
            url = self._connection.address.url
            raise UnreachableError(
                f"{url} does not answer", detail=f"no event and no heartbeat for {silent:.0f} seconds"
            )

    def close(self) -> None:
        """End the stream."""
        # Closing by QUIT would wait for the server, which is sending events.
        with contextlib.suppress(Exception):
            self._connection.driver._force_close()


def _trailer_after(code: int, event: bytes) -> int:
    """Returns the bytes of a checksum after this and later events: each file says whether it has checksums."""
    if code == EventType.FORMAT_DESCRIPTION:
        return 4 if event[-5] == 1 else 0
    return 4 if zlib.crc32(event[:-4]) == int.from_bytes(event[-4:], "little") else 0


def _damaged(code: int, end: int) -> DamagedError:
    return DamagedError(f"the checksum of a binary log event does not match (type {code}, before position {end})")
