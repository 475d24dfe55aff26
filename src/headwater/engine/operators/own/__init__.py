"""The user's own logic with state per key: a function for each key, or one for all keys of a batch."""
