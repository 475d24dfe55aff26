"""Measurements whose figures stand in the docs: Headwater beside what it is judged by, in one run.

`measure.py` takes wall and CPU time of cases in turn, `table.py` prints what came out beside its aim,
`machine.py` names the machine. `orders.py` is the event that is sent. `bare_disk.py` and `kafka_producer.py`
are what Headwater is compared with, `headwater_log.py` and `headwater_growth.py` are Headwater itself, and
`bench_log.py` puts the three into one table.
"""
