"""A consumer group: members share the partitions, and a new member resumes at the committed offsets."""

import tempfile

import headwater as hw

with tempfile.TemporaryDirectory() as folder, hw.connect(folder) as client:
    client.create_topic("payments", "payment_id int, customer string, cents int", key="customer", partitions=4)
    rows = [{"payment_id": n, "customer": f"c-{n % 10}", "cents": 100 + n} for n in range(40)]
    client.send_many("payments", rows)

    # The first member has all partitions, until a second one joins.
    with client.consumer("payments", group="billing") as first:
        print(f"alone: partitions {first.assignment}")
        with client.consumer("payments", group="billing") as second:
            done: list[int] = []
            shared = False
            while len(done) < 30:
                for consumer in (first, second):
                    events = consumer.poll("1 second", most=5)
                    done += [event.value["payment_id"] for event in events if event.value]
                    consumer.commit()
                if not shared and first.assignment and second.assignment:
                    shared = True
                    print(f"together: first {first.assignment}, second {second.assignment}")
            # Received but not committed: another member gets these again.
            lost = [event.value["payment_id"] for event in second.poll("1 second", most=3) if event.value]
            print(f"committed {len(done)}, then left with {len(lost)} in hand")

    # A new member, later, possibly in another process.
    with client.consumer("payments", group="billing", timeout="1 second") as third:
        for event in third:
            if event.value:
                done.append(event.value["payment_id"])
        third.commit()
    print(f"processed {len(done)} payments, {len(set(done))} different ones")

    # Groups are independent: another group reads every event.
    with client.consumer("payments", group="audit", timeout="0.1 seconds") as audit:
        print(f"audit saw {sum(1 for _ in audit)}")
    for lag in client.lag("billing"):
        print(f"lag partition {lag.partition}: {lag.events} events")
