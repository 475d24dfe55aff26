"""First contact with a PostgreSQL from the command line: what the check prints works, and each error names its fix."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from headwater.cli import main
from headwater.client import connect
from tests.capture.postgres.servers import Database

pytestmark = pytest.mark.services


@dataclass
class Done:
    """What a command has printed, and its exit code."""

    code: int
    stdout: str
    stderr: str


@pytest.fixture
def call(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """Runs a command to its end, in this process and in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> Done:
        capsys.readouterr()
        code = main(list(words))
        return Done(code, *capsys.readouterr())

    return run


@pytest.fixture
def shop(database18: Database) -> Database:
    database18.execute(
        "create table products (id int primary key, name text)",
        "insert into products values (1, 'tea'), (2, 'cup')",
        "create table notes (t text)",
    )
    return database18


def with_password(shop: Database, password: str = "tide") -> str:
    return shop.url.replace("postgres@", f"postgres:{password}@")


def test_the_printed_line_captures_the_table_once_its_variable_is_set(
    shop: Database, call: Callable[..., Done], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = call("capture", "check", with_password(shop))
    assert checked.code == 0  # notes has no key, which is no obstacle for products
    assert "tide" not in checked.stdout
    variable = re.search(r"export (\w+)=", checked.stdout)
    line = next(one.strip() for one in checked.stdout.splitlines() if "app.table" in one)
    assert variable
    monkeypatch.setenv(variable[1], "tide")
    (tmp_path / "app.py").write_text(f"import headwater as hw\n\napp = hw.App('shop')\n{line}\n")
    assert call("run", "app.py", "--until-current").code == 0
    with connect(tmp_path / ".headwater") as client:
        assert client.view("products").rows() == [{"id": 1, "name": "tea"}, {"id": 2, "name": "cup"}]


def test_an_address_that_is_a_reference_is_printed_as_it_is(
    shop: Database, call: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_DATABASE", with_password(shop))
    checked = call("capture", "check", "${SHOP_DATABASE}")
    assert 'hw.capture("${SHOP_DATABASE}", table="public.products")' in checked.stdout


def test_a_mistyped_table_is_answered_with_the_near_one(shop: Database, call: Callable[..., Done]) -> None:
    checked = call("capture", "check", shop.url, "--table", "public.prodcts")
    assert checked.code == 4
    assert "public.products" in checked.stdout


def test_a_table_without_key_is_refused_when_it_is_asked_for(shop: Database, call: Callable[..., Done]) -> None:
    checked = call("capture", "check", shop.url, "--table", "public.notes")
    assert checked.code == 4
    assert 'ALTER TABLE "public"."notes" ADD PRIMARY KEY' in checked.stdout


def test_the_statements_for_a_missing_right_name_the_user_and_work(shop: Database, call: Callable[..., Done]) -> None:
    user = f"ada-{shop.name}"
    shop.execute(f'create role "{user}" login replication')
    url = shop.url.replace("postgres@", f"{user}@")
    try:
        refused = call("capture", "check", url, "--table", "public.products")
        assert refused.code == 4
        statement = re.search(r"GRANT SELECT ON .*", refused.stdout)
        assert statement
        shop.execute(statement[0])
        assert call("capture", "check", url, "--table", "public.products").code == 0
    finally:
        shop.execute(f'drop owned by "{user}"', f'drop role "{user}"')


@pytest.mark.parametrize(
    ("change", "code", "error"),
    [
        (lambda url: url.replace("postgres@", "nobody-there@"), 3, "BAD_CREDENTIALS"),
        (lambda url: re.sub(r":\d+/", ":1/", url), 3, "UNREACHABLE"),
        (lambda url: f"{url}-2", 2, "BAD_SETTING"),
    ],
)
def test_a_wrong_address_is_an_error_that_names_its_fix(
    shop: Database, call: Callable[..., Done], change: Callable[[str], str], code: int, error: str
) -> None:
    refused = call("capture", "check", change(shop.url))
    assert (refused.code, error in refused.stderr, "fix: " in refused.stderr) == (code, True, True)


def test_plan_works_while_the_database_is_down(
    shop: Database, call: Callable[..., Done], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_DATABASE", shop.url)
    table = 'app.table("products", hw.capture("${SHOP_DATABASE}", table="products"))'
    view = 'app.view("names", key="name", sql="select name, count(*) n from products group by name")'
    (tmp_path / "app.py").write_text(f"import headwater as hw\n\napp = hw.App('shop')\n{table}\n{view}\n")
    assert call("plan", "app.py", "--no-spark").code == 0
    monkeypatch.setenv("SHOP_DATABASE", re.sub(r":\d+/", ":1/", shop.url))
    down = call("plan", "app.py", "--no-spark")
    assert (down.code, "UNREACHABLE" in down.stdout + down.stderr) == (3, True)  # nobody knows the type yet
    monkeypatch.setenv("SHOP_DATABASE", shop.url)
    (tmp_path / "capture.py").write_text(f"import headwater as hw\n\napp = hw.App('shop')\n{table}\n")
    assert call("run", "capture.py", "--until-current").code == 0  # the first run keeps the type
    monkeypatch.setenv("SHOP_DATABASE", re.sub(r":\d+/", ":1/", shop.url))
    planned = call("plan", "app.py", "--no-spark")
    assert planned.code == 0, planned
    assert "id INT NOT NULL" in planned.stdout


def test_the_status_of_a_dropped_table_names_the_way_out(
    shop: Database, call: Callable[..., Done], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_DATABASE", shop.url)
    shop.execute("create table stock (id int primary key)", "insert into stock values (1)")
    tables = [
        f'app.table("{name}", hw.capture("${{SHOP_DATABASE}}", table="{name}"))' for name in ("products", "stock")
    ]
    (tmp_path / "app.py").write_text("\n".join(["import headwater as hw", "", 'app = hw.App("shop")', *tables, ""]))
    assert call("run", "app.py", "--until-current").code == 0
    shop.execute("drop table products", "insert into stock values (2)")
    assert call("run", "app.py", "--until-current").code == 0
    status = call("capture", "status", "--json").stdout
    notes = {row["table"]: row["note"] for row in map(json.loads, status.splitlines())}
    assert notes["public.stock"] == ""
    assert "headwater capture snapshot public.products" in notes["public.products"]
    with connect(tmp_path / ".headwater") as client:
        assert client.view("stock").rows() == [{"id": 1}, {"id": 2}]  # the other table goes on
