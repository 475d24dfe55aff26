"""The write path: events become batches, wait in a bounded buffer, and are written in groups.

Enter at `TopicWriter` (topic_writer.py). Kafka and HTTP use the same encoder and buffer.
"""
