"""Serializers of the gateway: JSON, NDJSON, CloudEvents, CSV, Arrow, Parquet and JSON Schema.

Request bodies come in and batches of rows go out as bytes. Enter at requests.py for what arrives, at
responses.py for what leaves; documents.py declares the JSON documents.
"""

__all__: list[str] = []
