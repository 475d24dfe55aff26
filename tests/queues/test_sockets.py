"""Request/reply over sockets: the contract, and responders that start late, die, or leave addresses behind."""

from __future__ import annotations

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import headwater as hw
from headwater.errors import NoAnswerError
from tests.queues.request_reply_contract import (  # noqa: F401
    LONG,
    TestAnswers,
    TestCancelling,
    TestErrors,
    TestPressure,
    TestTime,
    begun,
)


def test_without_a_responder_the_wait_ends_at_the_deadline(client):
    with pytest.raises(NoAnswerError) as error:
        client.ask("it", {}, timeout=0.05)
    assert error.value.data == {"subject": "it", "sent": False}


def test_a_request_waits_for_a_later_responder(client, answer):
    with ThreadPoolExecutor(1) as threads:
        pending = threads.submit(client.ask, "it", 1, timeout=LONG)
        time.sleep(0.1)
        answer(lambda question: question + 1)
        assert pending.result(LONG) == 2


def test_a_dead_responder_is_noticed_at_once_and_others_answer(client, tmp_path):
    first, second = begun(str(tmp_path), "it"), begun(str(tmp_path), "it")
    try:
        with pytest.raises(NoAnswerError) as error:
            client.ask("it", "die", timeout=LONG)
        assert error.value.data["sent"]
        pids = {client.ask("it", n, timeout=LONG) for n in range(20)}
        assert len(pids) == 1  # the dead one is not pending any more
        dead = next(one for one in (first, second) if one.pid not in pids)
        assert dead.wait(LONG) == 9
        assert len(list((tmp_path / "answers" / "it").iterdir())) == 1
    finally:
        for process in (first, second):
            process.send_signal(signal.SIGKILL)
            process.communicate()


def test_over_http_the_error_says_to_use_the_folder(tmp_path):
    from headwater.server import Node

    with Node(tmp_path, port=0) as node, hw.connect(node.url) as client:
        for call in (lambda: client.ask("it", 1), lambda: client.queue("emails")):
            with pytest.raises(hw.HeadwaterError) as error:
                call()
            assert error.value.code == "BAD_SETTING"
            assert "folder" in error.value.fix


def test_a_request_waits_until_a_dead_responder_is_replaced(client, tmp_path, answer):
    process = begun(str(tmp_path), "it")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    (left,) = (tmp_path / "answers" / "it").iterdir()
    socket = Path(left.read_text())
    assert socket.exists()
    with ThreadPoolExecutor(1) as threads:
        pending = threads.submit(client.ask, "it", 1, timeout=LONG)
        while left.exists():
            time.sleep(0.01)
        answer(lambda question: question + 1)
        assert pending.result(LONG) == 2
    assert not socket.parent.exists()
