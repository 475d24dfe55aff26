"""A waiter wakes for appends and for changes of its group, and not otherwise."""

from __future__ import annotations

import threading
import time

import pytest

import headwater as hw
from tests.client.shop import fresh

pytestmark = pytest.mark.services


def test_an_append_wakes(client: hw.Client):
    name = fresh()
    client.create_topic(name, "n int")
    waiter = client.log.watch(name)
    assert not waiter.wait(0)
    client.send(name, {"n": 1})  # between two waits: not lost
    assert waiter.wait(10)
    assert not waiter.wait(0)
    sender = threading.Timer(0.05, client.send, (name, {"n": 2}))
    sender.start()
    assert waiter.wait(10)
    sender.join()
    waiter.close()


def test_waiting_costs_nearly_nothing(client: hw.Client):
    name = fresh()
    client.create_topic(name, "n int")
    waiter = client.log.watch(name)
    began = time.thread_time()
    assert not waiter.wait(1)
    assert time.thread_time() - began < 0.2


def test_a_change_of_the_group_wakes(client: hw.Client):
    name, group = fresh(), fresh("billing")
    client.create_topic(name, "n int")
    waiter = client.log.watch(name, group)
    with client.consumer(name, group=group):
        assert waiter.wait(10)
    waiter.close()
