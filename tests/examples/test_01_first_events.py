"""Example 01 prints what arithmetic and Kafka's partitioner say."""

from __future__ import annotations

import re
from decimal import Decimal


def test_events_come_back_in_order_per_customer(printed):
    lines = printed("01_first_events.py")
    sent = [re.findall(r"\d+", line) for line in lines if line.startswith("sent")]
    read = [re.match(r"read (\d):(\d) customer (\d): Order\(order_id='o-(\d)'", line) for line in lines]
    places = {match[4]: (match[1], match[2], match[3]) for match in read if match}
    assert {number: (partition, offset, customer) for number, customer, partition, offset in sent} == places
    # murmur2 of "1", "2", "3" over three partitions, as Kafka's DefaultPartitioner gives it
    assert {customer: partition for partition, _, customer in places.values()} == {"1": "0", "2": "2", "3": "2"}


def test_the_total_is_exact_and_a_misfit_is_refused(printed):
    lines = printed("01_first_events.py")
    assert f"total {sum(Decimal('10.50') * n for n in range(1, 7))}" in lines
    assert lines[-2].startswith("refused BAD_EVENT: ")
    assert "customer_id" in lines[-2]
    assert lines[-1] == "events 6"
