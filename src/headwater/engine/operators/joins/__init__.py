"""Events beside the rows of tables: as they are now, as they were at the event's time; and a table's history."""
