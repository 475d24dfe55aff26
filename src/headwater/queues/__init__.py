"""Messages handed out one by one: each to one worker of a group, again until it is acknowledged, then gone.

In come messages, each confirmed once it is safe; out come deliveries that are acknowledged, given back or rejected.
Enter at `protocol.py`: what every broker does. `embedded/` keeps messages in a file of the data folder.
"""
