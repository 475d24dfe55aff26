"""The jars of Spark's Kafka connector, and its settings, without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.engine.realtime import kafka
from headwater.engine.realtime.kafka import java_settings
from headwater.errors import BadSettingError, MissingConnectorError
from headwater.log.kafka.brokers import KafkaAddress


def test_a_jar_with_another_checksum_is_refused(tmp_path: Path):
    jar = tmp_path / "kafka.jar"
    jar.write_bytes(b"not what was tried")
    with pytest.raises(MissingConnectorError) as caught:
        kafka.verify_jar(str(jar), "org.apache.kafka:kafka-clients:3.9.2", "00")
    assert caught.value.data["jar"] == "org.apache.kafka:kafka-clients:3.9.2"


def test_a_folder_without_the_connector_is_refused_with_the_list(tmp_path: Path):
    (tmp_path / "other.jar").touch()
    with pytest.raises(MissingConnectorError) as caught:
        kafka._local_jars(str(tmp_path))
    assert all(coordinate in (caught.value.detail or "") for coordinate in kafka.JARS)


def test_login_and_certificate_reach_the_java_client():
    url = "kafka://ada:p%22w@a:9093?ssl.ca.location=/ca.pem&session.timeout.ms=6000&replication.factor=3"
    found = java_settings(KafkaAddress.parse(url))
    assert found["kafka.sasl.jaas.config"].endswith('required username="ada" password="p\\"w";')
    assert (found["kafka.security.protocol"], found["kafka.ssl.truststore.type"]) == ("SASL_SSL", "PEM")
    assert "kafka.session.timeout.ms" not in found


def test_a_setting_that_java_has_not_is_refused_by_name():
    with pytest.raises(BadSettingError) as caught:
        java_settings(KafkaAddress.parse("kafka://a:9092?enable.ssl.certificate.verification=false"))
    assert caught.value.data["setting"] == "enable.ssl.certificate.verification"
