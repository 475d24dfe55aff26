"""Serializers of the gateway: JSON, NDJSON, CloudEvents, CSV, Arrow, Parquet and JSON Schema.

requests.py decodes request bodies, responses.py encodes events and rows, documents.py declares the JSON documents.
"""

__all__: list[str] = []
