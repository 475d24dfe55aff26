"""Random and damaged JSON through the codec: rows or one of our errors, and nothing else."""

import random

import pyarrow as pa

from headwater.errors import HeadwaterError
from headwater.events import Codec, from_ddl

SCHEMA = from_ddl(
    "id STRING NOT NULL, n INT, big BIGINT, d DECIMAL(12,2), at TIMESTAMP, day DATE, f DOUBLE, ok BOOLEAN, raw BINARY, "
    "tags ARRAY<STRING>, m MAP<STRING, DOUBLE>, s STRUCT<x: SMALLINT NOT NULL, y: ARRAY<STRUCT<z: TIMESTAMP>>>"
)
LINES = [
    b'{"id":"a","n":1,"big":-5,"d":"1.50","at":"2026-01-01T00:00:00Z","day":"2026-01-01","f":1.5,"ok":true}',
    b'{"id":"\xc3\xa4\\u00e4\\"\\\\","raw":"AAE=","tags":["a",null,""],"m":{"k":1e3,"":-0.0},"s":{"x":1}}',
    b'{"id":"","s":{"x":-32768,"y":[{"z":"2026-01-01T00:00:00.123456+14:00"},null,{}]},"d":12.25,"tags":[]}',
    b'{ "id" : "x" , "n" : null , "m" : { } , "s" : null }',
]
TOKENS = [
    *(b'{ } [ ] , : " \\ null true false NaN Infinity -Infinity -0 0 1e999 1E-999999999 9223372036854775808'.split()),
    b"9" * 400,
    b"[" * 300,
    b'{"s":' * 300,
    b'"\\ud800"',
    b'"\\udc00\\ud800"',
    b"\xff",
    b"\xed\xa0\x80",
    b"\x00",
    b"\xef\xbb\xbf",
    b'"id":"b",',
    b'"x":1',
    b'"0001-01-01T00:00:00+14:00"',
    b'"9999-12-31T23:59:59.999999-12:00"',
    b'"2026-01-01T00:00:00"',
    b'"1e400"',
    b"\r\n",
    b" " * 50,
]
COUNT = 50_000


def damaged(line: bytes, chance: random.Random) -> bytes:
    for _ in range(chance.choice([0, 1, 1, 1, 2, 5])):
        start = chance.randrange(len(line) + 1)
        end = min(len(line), start + chance.choice([0, 0, 1, 3, 20]))
        piece = chance.choice(
            [chance.choice(TOKENS), chance.randbytes(3), line[end : end + 20], b"", bytes([chance.randrange(256)])]
        )
        line = line[:start] + piece + line[end:]
    return line


def outcome_of(codec: Codec, line: bytes) -> pa.RecordBatch | HeadwaterError:
    try:
        return codec.decode_json([line], max_line=2_000)
    except HeadwaterError as error:
        return error


def test_fifty_thousand_damaged_lines_give_rows_or_our_errors():
    codec = Codec(SCHEMA)
    chance = random.Random(20_260_101)
    taken = 0
    for _ in range(COUNT):
        line = damaged(chance.choice(LINES), chance)
        outcome = outcome_of(codec, line)
        if isinstance(outcome, HeadwaterError):
            assert outcome.code in ("BAD_EVENT", "BAD_JSON", "TOO_LARGE")
            assert len(str(outcome)) < 4_000
        else:
            taken += 1
            # What was taken is sound: it goes out as JSON and comes in again as the same event.
            assert codec.decode_json(codec.to_json(outcome)).equals(outcome)
    assert COUNT // 10 < taken < COUNT
