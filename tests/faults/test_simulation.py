"""Thousands of seeded runs of two processes with faults, compared with a model in plain Python."""

from __future__ import annotations

import logging

import pytest

from tests.faults.counts import injected, times
from tests.faults.world import World

STEPS = 200
SEEDS = times(1_000, 12_000)
CHUNK = 50


def run(seed: int) -> World:
    world = World(seed)
    try:
        world.run(STEPS)
    except BaseException as error:
        error.add_note(f"seed {seed}: World({seed}).run({STEPS}) does it again")
        raise
    return world


@pytest.fixture(autouse=True)
def _quiet():
    """Silence the warnings of recovery: there are thousands of torn tails here."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("first", range(1_000, 1_000 + SEEDS, CHUNK))
def test_log_equals_its_model_after_every_fault(first):
    for seed in range(first, first + CHUNK):
        injected(run(seed).faults)


def test_the_same_seed_takes_the_same_steps():
    assert (run(5).events, run(5).faults) == (run(5).events, run(5).faults)


def test_seeds_inject_faults_of_every_kind():
    worlds = [run(seed) for seed in range(20)]
    assert sum(world.faults for world in worlds) > 200
    assert sum(world.machine.boots for world in worlds) > 60
    assert sum(world.events for world in worlds) > 4_000
