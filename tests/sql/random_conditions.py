"""Random conditions over one table of awkward values, and the table."""

from __future__ import annotations

import math
import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pyarrow as pa

__all__ = ["ROWS", "SCHEMA", "Conditions"]

MOMENT = pa.timestamp("us", "UTC")
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("i", pa.int64()),
        ("Order", pa.int32()),
        ("d", pa.float64()),
        ("e", pa.float64()),
        ("f", pa.float32()),
        ("m", pa.decimal128(12, 2)),
        ("n", pa.decimal128(38, 10)),
        ("t", pa.string()),
        ("u", pa.string()),
        ("b", pa.bool_()),
        ("day", pa.date32()),
        ("seen", MOMENT),
        ("plain", pa.timestamp("us")),
        ("w", pa.struct([("start", MOMENT), ("end", MOMENT)])),
        ("tags", pa.list_(pa.string())),
    ]
)
INTEGERS = [0, 1, -1, 2, 3, 7, -7, 10, 100, 2**31 - 1, -(2**31), 2**53 + 1, 2**63 - 1, -(2**63) + 1, None]
SMALL = [0, 1, -1, 5, -5, 40, 2**31 - 1, -(2**31), None]
DOUBLES = [0.0, -0.0, 1.0, -1.0, 0.1, 0.5, 1.5, -7.5, 99.0, 1e15, 1e300, 5e-324, math.inf, -math.inf, math.nan, None]
DECIMALS = [Decimal(text) for text in ("0.00", "1.50", "-7.50", "99.00", "100.00", "0.01", "9999999999.99")] + [None]
LONG_DECIMALS = [Decimal(text) for text in ("0", "1.5", "-7.5", "0.0000000001", "123456789012345678.5")] + [None]
TEXTS = [
    *["", " ", "a", "A", "b", "B", "z", "Z", "ä", "Ä", "é", "É", "ß", "straße", "STRASSE"],
    *["ab", "aB", "Ab", "abc", " a ", "it's", '"', "a\nb", "🤦🏼‍♂️"],
    *["a_b", "a%b", "a!b", "%", "_", "!", "\\", "a\\b", "*", "a*b", "?", "[a]", "[", "]", "^"],
    *["10", "9", "-1", "1.5", "1e2", "NaN", "true", "2026-01-01", "2026-01-01T00:00:00Z", None],
]
DAYS = [
    date(1, 1, 1),
    date(1969, 12, 31),
    date(1970, 1, 1),
    date(2024, 2, 29),
    date(2026, 1, 1),
    date(9999, 12, 31),
    None,
]
TIMES = [
    *[datetime(1, 1, 1, tzinfo=UTC), datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)],
    *[datetime(1970, 1, 1, tzinfo=UTC), datetime(2024, 2, 29, 12, 30, tzinfo=UTC)],
    *[datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=UTC)],
    *[datetime(2026, 1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), None],
]


def _rows() -> pa.Table:
    chance = random.Random(7)
    rows = []
    for number in range(140):
        start = chance.choice([moment for moment in TIMES if moment is None or moment.year < 9999])
        plain = chance.choice(TIMES)
        rows.append(
            {
                "id": number,
                "i": INTEGERS[number % len(INTEGERS)],
                "Order": chance.choice(SMALL),
                "d": DOUBLES[number % len(DOUBLES)],
                "e": chance.choice(DOUBLES),
                "f": chance.choice([value for value in DOUBLES if value is None or not 0 < abs(value) < 1e-40]),
                "m": DECIMALS[number % len(DECIMALS)],
                "n": chance.choice(LONG_DECIMALS),
                "t": TEXTS[number % len(TEXTS)],
                "u": chance.choice(TEXTS),
                "b": chance.choice([True, False, None]),
                "day": DAYS[number % len(DAYS)],
                "seen": TIMES[number % len(TIMES)],
                "plain": None if plain is None else plain.replace(tzinfo=None),
                "w": None if start is None else {"start": start, "end": start + timedelta(minutes=1)},
                "tags": chance.choice([["a"], ["a", "B"], [], None]),
            }
        )
    return pa.Table.from_pylist(rows, schema=SCHEMA)


ROWS = _rows()


class Conditions:
    """Writes conditions; precedence is left to the reader about as often as to parentheses."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def write(self) -> str:
        return self._boolean(self._random.choice((0, 0, 1, 1, 2, 3)))

    def _pick(self, *choices: str) -> str:
        return self._random.choice(choices)

    def _boolean(self, depth: int) -> str:
        if depth == 0:
            return self._atom()
        one, other = self._boolean(depth - 1), self._boolean(self._random.randrange(depth))
        joined = self._pick(f"{one} and {other}", f"{one} or {other}", f"not {one}", f"({one}) and ({other})", one)
        return self._pick(joined, joined, f"({joined})", f"not ({joined})")

    def _atom(self) -> str:
        kind = self._random.choice(("integer", "double", "decimal", "text", "time", "day", "boolean", "mixed"))
        if kind == "boolean":
            return self._pick(
                "b", "not b", "b = true", "b is null", "b is not true", "b <> false", "true", "b in (true)"
            )
        if kind == "mixed":
            return self._mixed()
        value, constant = getattr(self, f"_{kind}"), getattr(self, f"_{kind}_constant")
        one = value()
        return self._pick(
            *(f"{one} {self._sign()} {constant()}" for _ in range(4)),
            f"{constant()} {self._sign()} {one}",
            f"{one} {self._sign()} {value()}",
            f"{one} {self._pick('in', 'not in')} ({constant()}, {constant()}, {constant()})",
            f"{one} {self._pick('between', 'not between')} {constant()} and {constant()}",
            f"{one} is {self._pick('', 'not ')}null",
            f"{one} is {self._pick('', 'not ')}distinct from {self._pick(constant(), value(), 'null')}",
            *([self._like(one)] * 3 if kind == "text" else []),
        )

    def _mixed(self) -> str:
        """Comparisons of different types, casts to truth, and lists."""
        return self._pick(
            f"{self._integer()} {self._sign()} {self._double_constant()}",
            f"{self._decimal()} {self._sign()} {self._double()}",
            f"m {self._sign()} '1.50'",
            f"n {self._sign()} {self._decimal_constant()}",
            f"f {self._sign()} {self._double_constant()}",
            f"i {self._sign()} '7'",
            f"d {self._sign()} 'NaN'",
            f"day {self._sign()} seen",
            f"plain {self._sign()} {self._time_constant()}",
            f"seen {self._sign()} plain",
            f"t {self._sign()} 10",
            f"length(t) {self._sign()} {self._pick('0', '1', '3')}",
            "list_contains(tags, 'a')",
            "tags is null",
            "w is null",
            "isnan(d)",
            f"case when {self._atom()} then b else {self._pick('true', 'false', 'null')} end",
            f"coalesce(b, {self._pick('true', 'false')})",
            f"i > 0 and 10 {self._pick('/', '%')} i > 1",
        )

    def _sign(self) -> str:
        return self._pick("=", "<>", "!=", "<", "<=", ">", ">=")

    def _integer(self) -> str:
        column = self._pick("i", "order", '"Order"', "I")
        return self._pick(
            *[column] * 16,
            f"{column} % {self._pick('2', '3', '-3', 'order')}",
            f"{column} + {self._pick('1', '-1', 'order')}",
            f"{column} * 2",
            f"{column} - 1",
            f"{column} / 2",
            f"{column} // {self._pick('2', '-2')}",
            f"-{column}",
            f"abs({column})",
            f"cast(d as {self._pick('integer', 'bigint')})",
            f"try_cast({self._pick('t', 'd', 'm')} as {self._pick('integer', 'bigint')})",
            "length(u)",
            "year(seen)",
            "date_part('hour', seen)",
        )

    def _integer_constant(self) -> str:
        return self._pick("0", "1", "-1", "7", "(-7)", "100", "2147483648", "9223372036854775807", "1.5", "1e2", "-0.5")

    def _double(self) -> str:
        return self._pick(
            *["d", "e", "D"] * 4, "d + e", "d * 2", "1 / e", "d % 2", "round(d)", "abs(e)", "cast(m as double)"
        )

    def _double_constant(self) -> str:
        return self._pick(
            "0",
            "0.0",
            "-0.0",
            "1.5",
            "0.1",
            "-7.5",
            "99",
            "1e300",
            "1e15",
            "1000000000000000",
            "'nan'",
            "1.0000000000000001",
        )

    def _decimal(self) -> str:
        return self._pick(
            *["m", "m", "n"] * 4,
            "m + 1",
            "m * 2",
            "m - n",
            "m / 3",
            "round(m)",
            "cast(i as decimal(38, 2))",
            "cast(d as decimal(12, 2))",
        )

    def _decimal_constant(self) -> str:
        return self._pick(
            "0",
            "99",
            "99.00",
            "99.0",
            "100",
            "-7.5",
            "0.01",
            "0.009999",
            "1.50",
            "1e2",
            "9999999999.99",
            "12345678901234567890.5",
        )

    def _text(self) -> str:
        return self._pick(
            *["t", "u", "T"] * 6,
            "lower(t)",
            "upper(t)",
            "t || u",
            "substr(t, 1, 2)",
            "trim(t)",
            "left(t, 1)",
            "concat(t, 'x')",
            "cast(i as varchar)",
            "cast(d as varchar)",
            "cast(m as varchar)",
            "coalesce(t, '')",
            "strip_accents(t)",
        )

    def _text_constant(self) -> str:
        text = self._random.choice([text for text in TEXTS if text is not None])
        return "'" + text.replace("'", "''") + "'"

    def _like(self, one: str) -> str:
        pattern = "".join(
            self._random.choice(["%", "_", "a", "A", "b", "ä", "!", "\\", "*", "?", "[", "s"])
            for _ in range(self._random.randrange(4))
        )
        operator = self._pick("like", "like", "not like", "ilike")
        escape = self._pick("", "", " escape '!'", " escape '\\'")
        prefix = self._pick("a", "", "%", "*", "Ä", "it''s")
        return self._pick(
            f"{one} {operator} '{pattern}'{escape}",
            f"{one} {operator} '{pattern}'{escape}",
            f"{self._pick('starts_with', 'ends_with', 'contains', 'prefix', 'suffix')}({one}, '{prefix}')",
        )

    def _time(self) -> str:
        return self._pick(
            *["seen"] * 8, "w.start", '"w.end"', "plain", "seen + interval 1 hour", "date_trunc('day', seen)", "W.End"
        )

    def _time_constant(self) -> str:
        zone = self._pick("", "Z", "+01:00", "-00:30", "+02")
        text = self._pick(
            f"2026-01-01T00:00:00{zone}",
            f"2026-01-01 01:00:00{zone}",
            "2026-01-01",
            f"1970-01-01T00:00:00.000{zone}",
            f"2024-02-29T12:30{zone}",
            "0001-01-01",
            f"9999-12-31T23:59:59.999999{zone}",
            f"2026-01-01T00:00:00.000001{zone}",
        )
        return self._pick("", "", "timestamptz ", "timestamp ") + f"'{text}'"

    def _day(self) -> str:
        return self._pick("day", "day", "day", "cast(seen as date)", "day + 1")

    def _day_constant(self) -> str:
        text = self._pick("2026-01-01", "1970-01-01", "0001-01-01", "9999-12-31", "2024-02-29")
        return self._pick("", "date ", "timestamp ") + f"'{text}'"
