"""What a topic can do in each place it can be: the table that the documentation shows."""

from __future__ import annotations

from typing import Final

__all__ = ["SUPPORT"]

# Capability: (embedded log, Kafka). Tests that are overridden for Kafka give the same reasons.
SUPPORT: Final[dict[str, tuple[str, str]]] = {
    "append, receipts with partition and offset": ("yes", "yes"),
    "same key, same partition": ("yes", "yes; adding partitions moves keys, as with every Kafka client"),
    "acknowledged = survives kill -9": ("yes", "yes"),
    "acknowledged = survives a power cut": (
        "yes, at `durable`",
        "by replicas only: `replication.factor=3&min.insync.replicas=2`; brokers do not sync each append",
    ),
    "`durability=`": ("durable, fast, memory", "kept in the definition; always all in-sync replicas"),
    "`send_many` whole or not at all per partition": (
        "yes",
        "with a producer id; otherwise a broker that dies can keep a part, which is told",
    ),
    "producer id + sequence": ("yes", "yes; a second process under an id shuts the first out"),
    "offset of a repeated event": ("yes", "of those this process sent; -1 for older ones"),
    "offsets without gaps": ("until compaction", "no: each commit of a transaction takes one"),
    "types that grow": ("yes", "yes, the same rules"),
    "`values=`": ("kept in the definition; always typed columns", "json, avro, arrow"),
    "what others write": ("not possible", "read under the declared type; what cannot be read is marked bad"),
    "read from an offset, a time, the end": ("yes", "yes; a time is found by reading from its arrival on"),
    "late records": ("on every read", "in pipelines; elsewhere by a walk (`headwater.log.kafka.walk`)"),
    "time marks of quiet partitions": ("yes", "in a side topic, for topics that pipelines read"),
    "tombstones and compaction": ("yes", "yes"),
    "retention waits for groups": ("yes", "no: brokers remove what is old, read or not"),
    "overload at the door": ("yes", "yes, per process"),
    "counts of the door": ("over all processes", "of this process"),
    "consumer groups": ("yes", "yes, as Kafka's own; other tools see members and lag"),
    "generation of a group": ("yes", "as the members of this process have seen it"),
    "a dead member is noticed": ("at once", "after `session.timeout.ms`, 10 s unless the URL says otherwise"),
    "wake-up": ("at once", "at once while fetching; 0.2 s for a bare `watch`"),
}
