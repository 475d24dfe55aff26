"""Scalar expressions of a query: from Spark's dialect to DuckDB's, where both mean the same."""
