"""The files of a topic's definition and of the history of its type."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headwater.errors import DamagedError, SchemaConflictError
from headwater.log import EventLog, Topic
from headwater.log.open_topic import latest_schema_version, load_schema, parse_definition, schema_file_name
from headwater.log.storage import Disk


def test_the_newest_version_is_found_by_name(tmp_path):
    assert latest_schema_version(Disk(), tmp_path) == 0
    for name in (schema_file_name(1), schema_file_name(12), "schema-13.arrow", "schema-0099.arrow.7.new", "topic.json"):
        (tmp_path / name).write_bytes(b"")
    assert latest_schema_version(Disk(), tmp_path) == 12


def test_a_schema_is_read_back(tmp_path):
    schema = pa.schema([pa.field("n", pa.int64(), metadata={"default": "1"})])
    (tmp_path / schema_file_name(3)).write_bytes(schema.serialize().to_pybytes())
    assert load_schema(Disk(), tmp_path, 3).equals(schema, check_metadata=True)


@pytest.mark.parametrize("data", [None, b"", b"x" * 100], ids=["missing", "empty", "garbage"])
def test_a_schema_that_cannot_be_read_is_named(tmp_path, data):
    if data is not None:
        (tmp_path / schema_file_name(1)).write_bytes(data)
    with pytest.raises(DamagedError) as caught:
        load_schema(Disk(), tmp_path, 1)
    assert caught.value.detail.startswith(str(tmp_path / "schema-0001.arrow"))


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b"{", b'{"name": "t"}', b'{"name": 7, "version": 1, "partitions": 1}']
)
def test_a_definition_that_cannot_be_read_is_named(tmp_path, data):
    with pytest.raises(DamagedError) as caught:
        parse_definition(tmp_path / "topic.json", data)
    assert caught.value.data == {"topic": tmp_path.name}


def test_a_topic_that_lost_its_definition_keeps_the_history_of_its_type(tmp_path):
    with EventLog(tmp_path) as log:
        log.create(Topic.declare("t", "n int"))
        log.create(Topic.declare("t", "n int, more string"))
        log.ends("t")
    (tmp_path / "topics" / "t" / "topic.json").unlink()
    with EventLog(tmp_path) as log:
        with pytest.raises(SchemaConflictError):
            log.create(Topic.declare("t", "n string"))
        assert log.create(Topic.declare("t", "n int, more string")).version == 2


def test_a_topic_that_never_held_anything_begins_with_version_one(tmp_path):
    """Its maker died between the two files."""
    with EventLog(tmp_path) as log:
        log.create(Topic.declare("t", "n int"))
    (tmp_path / "topics" / "t" / "topic.json").unlink()
    with EventLog(tmp_path) as log:
        assert log.create(Topic.declare("t", "other string")).version == 1
