"""From the user's function to a query that is known to run, and what has to be known to run it; enter at `build`."""
