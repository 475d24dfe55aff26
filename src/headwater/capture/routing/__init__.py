"""Routes a journal to the topics of its tables: whole rows by key, and the events of outboxes.

`router` takes the records in order, `whole_rows` completes rows from the current ones in `table_rows`, `topic_appender`
appends them. Enter at `Router`.
"""
