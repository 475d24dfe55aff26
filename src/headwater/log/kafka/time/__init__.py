"""Event time on Kafka, which knows none: kept beside a topic, read by pipelines. Enter at `TimedKafkaTopic`."""

from headwater.log.kafka.time.topic import IndexWaiter, TimedKafkaTopic

__all__ = ["IndexWaiter", "TimedKafkaTopic"]
