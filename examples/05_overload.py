"""Overload: each topic has a policy for events that arrive faster than the disk writes; every outcome is counted."""

import tempfile

import headwater as hw

EVENTS = 5_000
POLICIES = {
    "waits": hw.backpressure(events=50),
    "newest": hw.drop("newest", events=50),
    "oldest": hw.drop("oldest", events=50),
    "sampled": hw.drop("sampled", events=50, one_in=10),
}

with tempfile.TemporaryDirectory() as folder, hw.connect(folder) as client:
    for name, policy in POLICIES.items():
        client.create_topic(name, "number int", overload=policy)
        with client.producer(name) as producer:
            for number in range(EVENTS):
                producer.send({"number": number})  # does not wait for the disk
            receipts = producer.flush()

        # Every event has a receipt: stored with an offset, or dropped with the reason.
        stored = sum(receipt.dropped is None for receipt in receipts)
        dropped = len(receipts) - stored
        found = [event.value["number"] for event in client.read(name) if event.value]
        print(f"{name}: policy {policy}")
        print(f"{name}: offered {len(receipts)} = stored {stored} + dropped {dropped}, read back {len(found)}")
        print(f"{name}: in order {found == sorted(found)}, last event there {EVENTS - 1 in found}")
