"""The address, the driver and its errors."""

from __future__ import annotations

import sys

import confluent_kafka
import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient

import headwater as hw
from headwater import errors
from headwater.log.kafka.brokers import Brokers, KafkaAddress, driver
from headwater.units import duration
from tests.client.shop import fresh
from tests.services.kafka import Broker


def test_a_missing_driver_is_reported_with_its_install_command(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(errors.MissingPackageError) as caught:
        hw.connect("kafka://127.0.0.1:9092")
    assert caught.value.fix == 'pip install "headwater[kafka]"'


def test_the_driver_is_imported_when_it_is_needed():
    assert driver() is confluent_kafka


def test_an_address_keeps_its_secrets():
    url = "kafka://ada:p%40ss@a:9092,b:9093?sasl.mechanism=SCRAM-SHA-512&ssl.key.password=hidden&acks=all"
    address = KafkaAddress.parse(url)
    assert address.servers == "a:9092,b:9093"
    assert address.settings["sasl.password"] == "p@ss"
    assert address.settings["sasl.mechanism"] == "SCRAM-SHA-512"
    assert address.redact("p@ss hidden all") == "… … all"
    for text in (str(address), repr(address)):
        assert "p@ss" not in text
        assert "hidden" not in text


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError._AUTHENTICATION, errors.BadCredentialsError),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, errors.BadCredentialsError),
        (KafkaError._FENCED, errors.FencedError),
        (KafkaError.INVALID_PRODUCER_EPOCH, errors.FencedError),
        (KafkaError.MSG_SIZE_TOO_LARGE, errors.TooLargeError),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, errors.UnknownTopicError),
        (KafkaError._MSG_TIMED_OUT, errors.UnreachableError),
        (KafkaError.NOT_ENOUGH_REPLICAS, errors.UnreachableError),
        (KafkaError.INVALID_REPLICATION_FACTOR, errors.RefusedError),
    ],
)
def test_an_error_of_the_driver_becomes_one_of_ours(code: int, kind: type[errors.HeadwaterError]):
    brokers = Brokers(KafkaAddress.parse("kafka://127.0.0.1:9"), duration("1 s"))
    assert type(brokers.translate_error(KafkaError(code))) is kind


@pytest.mark.services
def test_a_lookup_does_not_create_a_topic(client: hw.Client, kafka: Broker):
    name = fresh()
    with pytest.raises(errors.UnknownTopicError):
        client.topic(name)
    assert client.log.kafka_topics.partition_counts(name) == {}
    client.create_topic(fresh(), "id int")  # a topic that the lookup created would exist by now
    assert name not in AdminClient({"bootstrap.servers": kafka.address}).list_topics(timeout=10).topics
