"""A compacted topic is a table: send to write a row, delete to remove it, read it whole, follow its changes."""

import tempfile

import headwater as hw

with tempfile.TemporaryDirectory() as folder, hw.connect(folder) as client:
    client.create_topic("products", "product_id int, name string, cents int", key="product_id", compact=True)

    client.send("products", {"product_id": 1, "name": "tea", "cents": 450})
    client.send("products", {"product_id": 2, "name": "honey", "cents": 600})
    before = client.send("products", {"product_id": 3, "name": "salt", "cents": 90})
    client.send("products", {"product_id": 1, "name": "tea", "cents": 480})  # replaces the row with this key
    client.delete("products", 3)

    products = client.table("products")
    for row in products.rows():
        print(f"row {row['product_id']} {row['name']} {row['cents']}")
    print(f"product 1 costs {(products.get(1) or {})['cents']}, product 3 is {products.get(3)}")

    for change in products.changes():
        print(f"{change.op} {change.key[0]}: {change.before} -> {change.after}")

    # The topic is a full copy of the table: a reader from the beginning needs no snapshot.
    copy: dict[int, dict[str, object]] = {}
    for event in client.read("products"):
        if event.tombstone:
            copy.pop(event.key, None)
        else:
            copy[event.key] = event.value or {}
    print(f"copy equals table: {list(copy.values()) == products.rows()}")
