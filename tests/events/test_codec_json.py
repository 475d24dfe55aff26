"""JSON lines through the codec: what is not JSON, what does not fit, what is too large."""

import pytest

from headwater.errors import BadEventError, BadJsonError, TooLargeError
from headwater.events import Codec, from_ddl
from tests.events.test_codec import GOOD, ORDERS


def lines_with(bad: bytes) -> list[bytes]:
    good = Codec(ORDERS).to_json(Codec(ORDERS).encode([GOOD]))[0]
    return [good, bad, good]


START = b'{"order_id":"o","customer_id":7,"amount":"1","placed_at":"2026-01-01T00:00:00Z"'


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"{",
        b"nonsense",
        b"[" * 10_000,
        START,
        START + b"}}",
        START + b'}{"a":1}',
        START + b',"score":NaN}',
        START + b',"score":Infinity}',
        START + b',"score":-Infinity}',
        START + b',"score":01}',
        START + b',"note":"\\ud800"}',
        START + b',"note":"\xff"}',
        START + b',"note":"\xed\xa0\x80"}',
        START + b',"note":"a\nb"}',
        START + b',"note":"a","note":"b"}',
        START + b',"note" : "a", "note" : "b"}',
        START + b',"note":null,"note":null}',
        START + b',"note":"\\u0022:","note":"b"}',
        START.replace(b'"o"', b'"\\u0022:"') + b',"note":"a","note":"b"}',
        START.replace(b'"o"', b'"\\"\\u003a"') + b',"note":"a","note":"b"}',
        START.replace(b'"o"', b'"\\u003aX"') + b',"note":"a","note":"b"}',
        START.replace(b'"o"', b'"\\u0020:"') + b',"note":"a","note":"b"}',
        START + b',"note" : "a","note":"b"}',
        START + b',"note"\n:"a","note":"b"}',
        START + b',"counts":{"a":1,"a":2}}',
        START + b',"counts":{"a":1,"\\u0061":2}}',
        START + b',"parts":[{"n":1,"n":2}]}',
        START + b",}",
        b"\xef\xbb\xbf" + START + b"}",
        START.decode().encode("utf-16"),
    ],
    ids=lambda line: line[-24:].decode("ascii", "replace"),
)
def test_lines_that_are_not_json_are_refused_by_number(bad):
    with pytest.raises(BadEventError) as caught:
        Codec(ORDERS).decode_json(lines_with(bad))
    assert caught.value.data["row"] == 1
    assert bad == b"[" * 10_000 or isinstance(caught.value, BadJsonError)


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        (b"null", None),
        (b"[]", None),
        (b"5", None),
        (b"{}", "order_id"),
        (START + b',"colour":"red"}', "colour"),
        (START + b',"colour":' + b"[" * 10_000, "colour"),
        (START + b',"note":' + b"[" * 10_000, "note"),
        (START + b',"parts":' + b"[" * 10_000, "parts[...]"),
        (START + b',"parts":' + b'[{"n":' * 10_000, "parts[...].n"),
        (START + b',"paid":1}', "paid"),
        (START + b',"score":1e400}', "score"),
        (START.replace(b"7", b"7.5") + b"}", "customer_id"),
        (START.replace(b"7", b"9" * 5_000) + b"}", "customer_id"),
        (START.replace(b'"1"', b"1e999999999") + b"}", "amount"),
        (START.replace(b'"1"', b"1e-999999999") + b"}", "amount"),
        (START.replace(b'"1"', b"1" * 100_000) + b"}", "amount"),
        (START.replace(b'"1"', b'"NaN"') + b"}", "amount"),
        (START.replace(b"Z", b"") + b"}", "placed_at"),
        (START.replace(b"2026-01-01", b"2026-02-30") + b"}", "placed_at"),
    ],
    ids=lambda part: part[-24:].decode() if isinstance(part, bytes) else part,
)
def test_json_that_does_not_fit_is_refused_by_field(bad, field):
    with pytest.raises(BadEventError) as caught:
        Codec(ORDERS).decode_json(lines_with(bad))
    assert caught.value.data["row"] == 1
    found = caught.value.data["field"]
    assert (found or "").replace("[0]", "[...]") == (field or "")


def test_a_quote_before_a_colon_inside_text_is_no_name():
    codec = Codec(from_ddl("a STRING, m MAP<STRING, STRING>"))
    lines = [b'{"a":"x\\":y\\":"}', b'{"m":{"\\":":"\\u0022:"}}', b'{ "a" : "\\" :" }', b'{"a":null,"m":null}']
    assert codec.rows(codec.decode_json(lines)) == [
        {"a": 'x":y":', "m": None},
        {"a": None, "m": {'":': '":'}},
        {"a": '" :', "m": None},
        {"a": None, "m": None},
    ]


def test_a_line_over_the_limit_is_refused_before_it_is_parsed():
    with pytest.raises(TooLargeError) as caught:
        Codec(ORDERS).decode_json([START + b"}", b"[" * 1001], max_line=1000)
    assert (caught.value.data["row"], caught.value.data["limit"]) == (1, 1000)


def test_an_event_of_ten_million_fields_is_over_the_limit():
    line = b"{" + b'"a":1,' * 10_000_000 + b'"b":1}'
    with pytest.raises(TooLargeError):
        Codec(ORDERS).decode_json([line])
