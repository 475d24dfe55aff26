"""A task queue: each message goes to one worker and is retried if it fails."""

from dataclasses import dataclass

import headwater as hw
from headwater.testing import run

app = hw.App("post")


@dataclass
class Email:
    """A mail to send."""

    to: str
    subject: str


emails = app.queue("emails", Email, retry=hw.retry(5, backoff="2s", jitter=0), visibility_timeout="30 seconds")
busy = {"bob@example.com": 2}  # attempts that fail


@emails.worker(threads=4)
def send(email: Email, message: hw.Message) -> None:
    """On return, the message is acknowledged. On an error, it is redelivered after a backoff that doubles each time."""
    if "@" not in email.to:
        raise hw.Reject(f"{email.to} is not an address")  # no attempt can succeed
    if busy.get(email.to, 0) >= message.attempt:
        raise ConnectionError("the line is busy")
    print(f"sent {email.subject} to {email.to}, attempt {message.attempt}")


# `headwater run 32_task_queue.py` runs the workers until Ctrl-C; here they run briefly, in a temporary folder.
if __name__ == "__main__":
    with run(app) as world, world.queue("emails") as queue:
        queue.publish(Email("ada@example.com", "newsletter"), id="mail-1")
        queue.publish(Email("ada@example.com", "password"), priority=9)  # delivered before all others
        queue.publish(Email("bob@example.com", "welcome"))
        queue.publish(Email("carol", "welcome"))
        queue.publish(Email("dan@example.com", "reminder"), delay="1 hour")
        print(f"again: duplicate {queue.publish(Email('ada@example.com', 'newsletter'), id='mail-1').duplicate}")
        for length in ("0 seconds", "2 seconds", "4 seconds", "1 hour"):
            world.advance(length)
            world.settle()
            (counts,) = queue.counts()
            print(f"after {length}: acked {counts.acked}, delayed {counts.delayed}, dead {counts.dead}")
