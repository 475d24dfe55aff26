"""Settings of librdkafka, as they stand in a `kafka://` address, in the words of Kafka's Java clients."""

from __future__ import annotations

from typing import Final

from headwater.errors import BadSettingError
from headwater.log.kafka.brokers import KafkaAddress

__all__ = ["java_settings"]

_SAME: Final = (
    "client.id",
    "client.rack",
    "connections.max.idle.ms",
    "metadata.max.age.ms",
    "receive.buffer.bytes",
    "reconnect.backoff.max.ms",
    "reconnect.backoff.ms",
    "request.timeout.ms",
    "retry.backoff.ms",
    "security.protocol",
    "ssl.endpoint.identification.algorithm",
)
_FILES: Final = {"ssl.ca.location": ("ssl.truststore.location", "ssl.truststore.type")}
_LOGIN: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_IDLE: Final = ("session.timeout.ms",)
"""Settings of group members, which Spark's source is not."""


def java_settings(address: KafkaAddress) -> dict[str, str]:
    """The settings as options of Spark's source and sink.

    Raises:
        BadSettingError: A setting has no counterpart in Java.

    Example:
        >>> java_settings(KafkaAddress.of("kafka://a:9092?client.id=till"))
        {'kafka.bootstrap.servers': 'a:9092', 'kafka.client.id': 'till'}
        >>> sorted(java_settings(KafkaAddress.of("kafka://ada:pw@a:9092")))[1:3]
        ['kafka.sasl.jaas.config', 'kafka.sasl.mechanism']
    """
    given = {name: value for name, value in address.settings.items() if name not in _IDLE}
    found = {"bootstrap.servers": address.servers}
    mechanism = given.pop("sasl.mechanism", None) or given.pop("sasl.mechanisms", None)
    user, password = given.pop("sasl.username", None), given.pop("sasl.password", None)
    if mechanism is not None:
        if mechanism not in _LOGIN or user is None:
            raise _unknown(f"sasl.mechanism={mechanism}")
        login = f"username={_quoted(user)} password={_quoted(password or '')}"
        found["sasl.mechanism"] = mechanism
        found["sasl.jaas.config"] = f"{_LOGIN[mechanism]} required {login};"
    for name, value in given.items():
        if name in _FILES:
            location, kind = _FILES[name]
            found |= {location: value, kind: "PEM"}
        elif name in _SAME:
            found[name] = value
        else:
            raise _unknown(name)
    return {f"kafka.{name}": value for name, value in found.items()}


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _unknown(setting: str) -> BadSettingError:
    what = f"real-time mode cannot use {setting} of the log's address"
    detail = f"Spark's source is Kafka's Java client; what it takes from the address: {', '.join((*_SAME, *_FILES))}"
    return BadSettingError(what, detail=detail, fix='leave out the setting, or latency="realtime"')
