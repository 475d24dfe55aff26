"""Benchmarks whose figures are in the docs: Headwater and what it is compared with, in one run.

`measure.py` measures wall and CPU time of cases in turn, `table.py` prints the results beside their targets,
`machine.py` describes the machine, `orders.py` generates the events. `bare_disk.py` and `kafka_producer.py`
are what Headwater is compared with, `headwater_log.py` and `headwater_growth.py` measure Headwater, and
`bench_log.py` prints all three in one table. Further tables: `bench_spine.py` (views), `bench_state.py`,
`bench_queues.py`, `bench_scale.py`.
"""
