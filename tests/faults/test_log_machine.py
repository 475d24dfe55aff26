"""The log as a state machine: Hypothesis chooses the steps and looks for the shortest failing sequence."""

from __future__ import annotations

import logging

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from tests.faults.counts import times
from tests.faults.world import DamagedByPowerCutError, World

CHANCE = st.randoms(use_true_random=False)


class LogMachine(RuleBasedStateMachine):
    """Two processes and one topic; after every step that could have lost something, the whole log is compared."""

    def __init__(self) -> None:
        super().__init__()
        self.world: World | None = None

    def step(self, name: str, chance: object) -> None:
        if self.world is None:
            self.world = World(chance)  # type: ignore[arg-type]
        self.world.chance = chance  # type: ignore[assignment]
        try:
            getattr(self.world, name)()
        except DamagedByPowerCutError:
            self.world = None

    @rule(chance=CHANCE)
    def append(self, chance: object) -> None:
        self.step("append", chance)

    @rule(chance=CHANCE)
    def append_group(self, chance: object) -> None:
        self.step("append_group", chance)

    @rule(chance=CHANCE)
    def append_idempotent(self, chance: object) -> None:
        self.step("append_idempotent", chance)

    @rule(chance=CHANCE)
    def read(self, chance: object) -> None:
        self.step("read_some", chance)

    @rule(chance=CHANCE)
    def find(self, chance: object) -> None:
        self.step("find", chance)

    @rule(chance=CHANCE)
    def mark(self, chance: object) -> None:
        self.step("mark", chance)

    @rule(chance=CHANCE)
    def roll(self, chance: object) -> None:
        self.step("roll", chance)

    @rule(chance=CHANCE)
    def retain(self, chance: object) -> None:
        self.step("retain", chance)

    @rule(chance=CHANCE)
    def compact(self, chance: object) -> None:
        self.step("compact", chance)

    @rule(chance=CHANCE)
    def move_the_clock(self, chance: object) -> None:
        self.step("move_clock", chance)

    @rule(chance=CHANCE)
    def renew_the_clock(self, chance: object) -> None:
        self.step("renew_clock", chance)

    @rule(chance=CHANCE)
    def declare(self, chance: object) -> None:
        self.step("declare", chance)

    @rule(chance=CHANCE)
    def consume(self, chance: object) -> None:
        self.step("consume", chance)

    @rule(chance=CHANCE)
    def kill(self, chance: object) -> None:
        self.step("kill", chance)

    @rule(chance=CHANCE)
    def restart(self, chance: object) -> None:
        self.step("restart", chance)

    @rule(chance=CHANCE)
    def cut_power(self, chance: object) -> None:
        self.step("cut_power", chance)

    def teardown(self) -> None:
        if self.world is not None:
            self.world.check_all()


def test_no_sequence_of_steps_breaks_the_log():
    logging.disable(logging.CRITICAL)
    try:
        run_state_machine_as_test(
            LogMachine,
            settings=settings(
                max_examples=times(150, 3_000),
                stateful_step_count=times(100, 200),
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
    finally:
        logging.disable(logging.NOTSET)
