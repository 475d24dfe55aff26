"""The end of every batch: accounts, commit, publication, and the checkpoint they depend on; enter at `sink`."""
