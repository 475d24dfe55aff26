"""Capture of a PostgreSQL database by triggers, which record changes in a table: `trigger_outbox`.

Enter at `PostgresTriggerSource` in `trigger_source`.
"""
