"""Workers and answers as they are declared: what a function is given, and what is refused with its line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

import headwater as hw
from headwater.errors import BadAppError, BadSettingError, BadWorkerError


@dataclass
class Email:
    to: str


def app() -> hw.App:
    return hw.App("shop")


def test_annotations_say_what_a_function_is_given():
    emails = app().queue("emails")

    @emails.worker
    def plain(email): ...

    @emails.worker
    def typed(email: Email): ...

    @emails.worker
    def both(message: hw.Message, email: Email, tries: int = 3): ...

    @emails.worker
    def message_only(message: hw.Message): ...

    found = {worker.name: worker.arguments for worker in emails.workers}
    assert [found[name].parameters for name in found] == [("value",), ("value",), ("message", "value"), ("message",)]
    assert [found[name].as_ for name in found] == [None, Email, Email, None]


def test_the_type_of_the_queue_is_the_type_of_its_values():
    emails = app().queue("emails", Email)

    @emails.worker
    def send(email): ...

    assert emails.workers[0].arguments.as_ is Email
    assert emails.definition.schema.names == ["to"]


def test_the_function_stays_as_it_is():
    @app().queue("emails").worker(threads=4)
    def send(email: Email) -> str:
        return email.to

    assert send(Email("ada")) == "ada"


def test_groups_are_those_of_the_workers():
    orders = app().queue("orders")

    @orders.worker(group="mail")
    def mail(order): ...

    @orders.worker(group="stock", processes=2)
    def stock(order): ...

    assert [group.name for group in orders.definition.groups] == ["mail", "stock"]
    assert "groups" in orders.definition.given


def test_groups_that_are_named_must_be_used():
    orders = app().queue("orders", groups=[hw.group("eu", routing_key="orders.*.eu"), "all"])
    for group in ("us", None):
        with pytest.raises(BadWorkerError) as error:
            orders.worker(group=group)(lambda order: None)
        assert error.value.detail == "groups: eu, all"
    assert [group.name for group in orders.definition.groups] == ["eu", "all"]


def generator(email: Any) -> Any:
    yield email


def two(email: Email, other: Email) -> None: ...


def nothing() -> None: ...


def named(*, email: Email) -> None: ...


@pytest.mark.parametrize("function", [generator, two, nothing, named, Email, "text"])
def test_what_cannot_work_on_messages_is_refused(function):
    with pytest.raises(BadWorkerError):
        app().queue("emails").worker(function)


@pytest.mark.parametrize("options", [{"threads": 0}, {"processes": -1}, {"prefetch": 0}])
def test_numbers_below_one_are_refused_with_the_line(options):
    with pytest.raises(BadWorkerError) as error:
        app().queue("emails").worker(**options)(nothing)
    assert error.value.location is not None
    assert "def nothing" in error.value.location.source


def test_an_async_function_takes_several_messages_at_a_time():
    emails = app().queue("emails")

    @emails.worker
    async def send(email): ...

    assert emails.workers[0].is_async
    assert emails.workers[0].prefetch == 10


def test_names_are_declared_once():
    shop = app()
    emails = shop.queue("emails")
    emails.worker(two_arguments := lambda email: None)
    with pytest.raises(BadWorkerError):
        emails.worker(two_arguments)
    with pytest.raises(BadAppError) as error:
        shop.queue("emails")
    assert error.value.location is not None
    shop.answer("prices")(lambda question: 1)
    with pytest.raises(BadAppError):
        shop.answer("prices")(lambda question: 2)


def test_an_option_that_does_not_exist_is_refused_with_the_line():
    with pytest.raises(BadSettingError) as error:
        app().queue("emails", retries=3)
    assert "retries=3" in error.value.location.source


def test_a_function_that_answers_takes_the_question_and_nothing_else():
    with pytest.raises(BadWorkerError):

        @app().answer("prices")
        def quote(question, message: hw.Message): ...
