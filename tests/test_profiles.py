"""Profiles: found upwards, overridden by the environment, wrong ones told with their line, secrets never shown."""

from __future__ import annotations

import os
import pickle  # noqa: TID251 - an address may be copied to another process, and must stay silent there too
import subprocess
from pathlib import Path

import pytest

import headwater as hw
from headwater.errors import BadProfileError, BadSettingError, HeadwaterError, MissingSecretError, UnknownProfileError
from headwater.profiles import Address, Profile, describe, read_profile, redact
from tests.cli.conftest import COMMAND
from tests.page_programs import blocks

PAGE = Path(__file__).parent.parent / "docs" / "profiles.md"
CANARY = "c4n4ry/tide@9"
QUOTED = "c4n4ry%2Ftide%409"
PROD = """
[profiles.prod]
log = "kafka://a:9092,b:9092"
store = "postgresql://shop:${SHOP_PASSWORD}@db/shop"
spark = "spark://m:7077"
checkpoints = "s3a://bucket/checkpoints"
python = "/opt/shop/bin/python"

[profiles.staging]
log = "data"
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with nothing of ours in the environment."""
    for name in ("PROFILE", "DATA", "LOG", "STORE", "SPARK", "CHECKPOINTS"):
        monkeypatch.delenv(f"HEADWATER_{name}", raising=False)
    monkeypatch.delenv("SHOP_PASSWORD", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_without_a_name_everything_is_in_the_data_folder(folder):
    (folder / "headwater.toml").write_text("this is not read")
    profile = read_profile()
    assert profile == Profile("embedded")
    assert (profile.log, profile.store, str(profile.spark)) == (None, None, "local[*]")
    assert profile.data_folder() == ".headwater"


def test_a_profile_is_found_from_a_folder_below(folder, monkeypatch):
    (folder / "headwater.toml").write_text(PROD)
    (folder / "a/b").mkdir(parents=True)
    monkeypatch.chdir(folder / "a/b")
    profile = read_profile("prod")
    assert str(profile.log) == "kafka://a:9092,b:9092"
    assert profile.kafka
    assert (profile.spark.resolve(), profile.python) == ("spark://m:7077", "/opt/shop/bin/python")
    assert profile.checkpoints.resolve() == "s3a://bucket/checkpoints"


def test_an_archive_with_python_is_relative_to_the_file_that_names_it(folder):
    (folder / "headwater.toml").write_text('[profiles.prod]\npython = "env.tar.gz"')
    assert read_profile("prod").python == str(folder / "env.tar.gz")


def test_a_folder_is_relative_to_the_file_that_names_it(folder, monkeypatch):
    (folder / "headwater.toml").write_text(PROD)
    (folder / "below").mkdir()
    monkeypatch.chdir(folder / "below")
    profile = read_profile("staging")
    assert not profile.kafka
    assert profile.data_folder() == str(folder / "data")
    assert profile.data_folder("other") == "other"


def test_profiles_may_stand_in_pyproject(folder, monkeypatch):
    (folder / "pyproject.toml").write_text(PROD.replace("[profiles.", "[tool.headwater.profiles."))
    (folder / "below").mkdir()
    (folder / "below/pyproject.toml").write_text('[project]\nname = "not ours"\n')
    monkeypatch.chdir(folder / "below")
    profile = read_profile("prod")
    assert profile.kafka
    assert (profile.location.file, profile.location.line) == (str(folder / "pyproject.toml"), 2)


def test_the_nearest_file_counts_and_headwater_toml_before_pyproject(folder, monkeypatch):
    (folder / "headwater.toml").write_text(PROD)
    (folder / "below").mkdir()
    (folder / "below/headwater.toml").write_text('[profiles.prod]\nlog = "near"\n')
    (folder / "below/pyproject.toml").write_text('[tool.headwater.profiles.prod]\nlog = "project"\n')
    monkeypatch.chdir(folder / "below")
    assert read_profile("prod").log.resolve() == str(folder / "below/near")


def test_the_environment_counts_more_than_the_file(folder, monkeypatch):
    (folder / "headwater.toml").write_text(PROD)
    monkeypatch.setenv("HEADWATER_PROFILE", "prod")
    monkeypatch.setenv("HEADWATER_LOG", "kafka://c:1")
    monkeypatch.setenv("HEADWATER_STORE", "postgresql://u:written-out@h/d")
    monkeypatch.setenv("HEADWATER_SPARK", "yarn")
    monkeypatch.setenv("HEADWATER_CHECKPOINTS", "hdfs://n/c")
    profile = read_profile()
    assert profile.name == "prod"
    assert [str(each) for each in (profile.log, profile.store, profile.spark, profile.checkpoints)] == [
        "kafka://c:1",
        "postgresql://u:***@h/d",
        "yarn",
        "hdfs://n/c",
    ]
    assert profile.store.resolve() == "postgresql://u:written-out@h/d"


def test_a_secret_is_looked_up_when_it_is_used(folder, monkeypatch):
    (folder / "headwater.toml").write_text(PROD)
    store = read_profile("prod").store  # the variable is not set, and nothing asks for it
    with pytest.raises(MissingSecretError) as raised:
        store.resolve()
    assert raised.value.data["reference"] == "SHOP_PASSWORD"
    assert (raised.value.location.file, raised.value.location.line) == ("headwater.toml", 4)
    monkeypatch.setenv("SHOP_PASSWORD", CANARY)
    assert store.resolve() == f"postgresql://shop:{QUOTED}@db/shop"


def test_a_secret_may_be_in_a_file_beside_the_profile(folder, monkeypatch):
    (folder / "headwater.toml").write_text(
        '[profiles.prod]\nstore = "postgresql://u:${file:secrets/db}@h/d"\nlog = "kafka://h:1?sasl.password=${env:P}"\n'
    )
    (folder / "below").mkdir()
    monkeypatch.chdir(folder / "below")
    monkeypatch.setenv("P", "a&b")
    profile = read_profile("prod")
    with pytest.raises(MissingSecretError) as raised:
        profile.store.resolve()
    assert raised.value.data["reference"] == "file:secrets/db"
    (folder / "secrets").mkdir()
    (folder / "secrets/db").write_text("tide\n")
    assert profile.store.resolve() == "postgresql://u:tide@h/d"
    assert profile.log.resolve() == "kafka://h:1?sasl.password=a%26b"
    assert str(profile.log) == "kafka://h:1?sasl.password=***"


def test_a_whole_address_may_be_a_reference(monkeypatch):
    store = Address("${DATABASE_URL}", "store").validate(plain_secrets=False)
    monkeypatch.setenv("DATABASE_URL", "postgresql://u:p%40@h/d")
    assert store.resolve() == "postgresql://u:p%40@h/d"
    monkeypatch.setenv("DATABASE_URL", f"mysql://u:{CANARY}@h/d")
    with pytest.raises(BadProfileError) as raised:
        store.resolve()
    assert CANARY not in raised.value.render()


@pytest.mark.parametrize("reference", ["${}", "${vault:x}", "${A-B}"])
def test_what_is_no_reference_is_told(reference):
    with pytest.raises(MissingSecretError) as caught:
        Address(f"postgresql://u:{reference}@h/d", "store").resolve()
    assert caught.value.data["reference"] == reference[2:-1]
    assert "not a reference" in caught.value.what


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"postgresql://u:{CANARY}@h:5432/d?sslmode=require", "postgresql://u:***@h:5432/d?sslmode=require"),
        (f"postgresql://:{CANARY}@h/d", "postgresql://:***@h/d"),
        (
            f"postgresql://u@h/d?password={CANARY}&application_name=a@b",
            "postgresql://u@h/d?password=***&application_name=a@b",
        ),
        (
            f"kafka://h:1?ssl.key.password={CANARY}&SASL.PASSWORD={CANARY}",
            "kafka://h:1?ssl.key.password=***&SASL.PASSWORD=***",
        ),
        (f"kafka://h:1?sasl.oauthbearer.client.secret={CANARY}", "kafka://h:1?sasl.oauthbearer.client.secret=***"),
        ("kafka://a:9092,b:9092", "kafka://a:9092,b:9092"),
        ("postgresql://[::1]:5432/d", "postgresql://[::1]:5432/d"),
        ("postgresql://${env:U}:${file:/a:b@c}@h/d", "postgresql://${env:U}:***@h/d"),
        ("folder/of the:log@home", "folder/of the:log@home"),
    ],
)
def test_what_is_shown_has_no_password(text, shown):
    assert redact(text) == shown


def test_no_form_of_a_profile_shows_its_secrets(monkeypatch):
    monkeypatch.setenv("HEADWATER_STORE", f"postgresql://u:{QUOTED}@h/d")
    monkeypatch.setenv("HEADWATER_LOG", f"kafka://u:{QUOTED}@h:1")
    profile = read_profile()
    copy = pickle.loads(pickle.dumps(profile))
    shown = [f"{profile} {profile!r} {profile.store} {profile.store!r} {copy!r}", *describe(profile)]
    assert "c4n4ry" not in "\n".join(shown)
    assert "u:***@h" in shown[0]


@pytest.mark.parametrize(
    "line",
    [
        f'store = "postgresql://u:{CANARY}@h/d"',
        f'store = "postgresql://u:{CANARY}${{REST}}@h/d"',
        f'store = "postgresql://h/d?password={CANARY}"',
        f'log = "kafka://h:1?sasl.password={CANARY}"',
        f'log = "kafka://u:{CANARY}@h:1"',
    ],
)
def test_a_password_written_out_in_a_file_is_refused(folder, line):
    (folder / "headwater.toml").write_text(f"[profiles.prod]\n\n{line}\n")
    with pytest.raises(BadProfileError) as raised:
        read_profile("prod")
    assert (raised.value.location.line, raised.value.data["key"]) == (3, line.split()[0])
    assert "${NAME}" in raised.value.fix
    assert CANARY not in raised.value.render() + str(raised.value.problem())


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ('[profiles.prod]\nlgo = "x"\n', 2, "lgo"),
        (f'[profiles.prod]\npassword = "{CANARY}"\n', 2, "password"),
        ("[profiles.prod]\nlog = 3\n", 2, "log"),
        ('[profiles.prod]\nlog = ""\n', 2, "log"),
        ('[profiles.prod]\nlog = "kafka://"\n', 2, "kafka://"),
        ('[profiles.prod]\nlog = "kafka://h:port"\n', 2, "kafka://h:port"),
        ('[profiles.prod]\nlog = "kafka://a:1,b:70000"\n', 2, "70000"),
        ('[profiles.prod]\nlog = "kafak://h:1"\n', 2, "kafak"),
        ('[profiles.prod]\nlog = "x"\nstore = "mysql://h/d"\n', 3, "mysql"),
        ('[profiles.prod]\nstore = "shop.db"\n', 2, "shop.db"),
        ('[profiles.prod]\nspark = "local[x]"\n', 2, "local[x]"),
        ('[profiles.prod]\nspark = "spark://h p"\n', 2, "spark://h p"),
        ('[profiles.other]\nlog = "y"\n["profiles".prod]\nstore = 1\n', 2, "store"),
        ('[profiles.prod]\nlog = "x\n', 2, "headwater.toml"),
        ('[profiles.prod]\nlog = "x"\nlog = "y"\n', 3, "headwater.toml"),
        ('colour = "blue"\n[profiles.prod]\n', 1, "colour"),
        ("profiles = 3\n", 1, "profiles"),
        ("[profiles]\nprod = 3\n", 1, "prod"),
        ("[profiles.embedded]\n[profiles.prod]\n", 1, "embedded"),
    ],
)
def test_a_wrong_file_is_told_with_its_line(folder, text, line, said):
    (folder / "headwater.toml").write_text(text)
    with pytest.raises(BadProfileError) as raised:
        read_profile("prod")
    assert said in raised.value.what
    assert raised.value.fix
    if not text.startswith("[profiles.other]"):  # a header in other words is not found; the file still is
        assert str(raised.value.location) == f"headwater.toml:{line}"
    assert CANARY not in raised.value.render()


@pytest.mark.parametrize(
    "text", ["local", "local[2]", "local[*,3]", "spark://a:1,b:2", "k8s://https://h:6443", "yarn", "${MASTER}"]
)
def test_spark_masters_pass_through(text, monkeypatch):
    monkeypatch.setenv("MASTER", "yarn")
    monkeypatch.setenv("HEADWATER_SPARK", text)
    assert read_profile().spark.resolve() == ("yarn" if text == "${MASTER}" else text)


def test_an_unknown_profile_names_near_ones(folder):
    (folder / "headwater.toml").write_text(PROD)
    with pytest.raises(UnknownProfileError) as raised:
        read_profile("prd")
    assert (raised.value.data["profile"], raised.value.fix) == ("prd", "--profile prod")
    assert "prod, staging" in raised.value.detail


def test_a_profile_without_any_file_says_where_it_would_be(folder):
    with pytest.raises(UnknownProfileError) as raised:
        read_profile("prod")
    assert raised.value.data["profile"] == "prod"
    assert "headwater.toml" in raised.value.fix


def test_what_is_described_is_where_things_are(folder, monkeypatch):
    assert describe(read_profile()) == [
        "profile      embedded",
        "log          the data folder, .headwater",
        "store        SQLite in the data folder, .headwater",
        "spark        local[*]",
        "checkpoints  the data folder, .headwater",
    ]
    (folder / "headwater.toml").write_text(PROD)
    assert describe(read_profile("staging"))[1:3] == [
        "log          data",
        "store        SQLite in the data folder, data",
    ]
    assert describe(read_profile("prod")) == [
        "profile      prod   headwater.toml:2",
        "log          kafka://a:9092,b:9092",
        "store        postgresql://shop:***@db/shop",
        "spark        spark://m:7077",
        "checkpoints  s3a://bucket/checkpoints",
        "python       /opt/shop/bin/python",
        "page         none, and no HTTP: the log is on Kafka; headwater view, lag and status read it",
    ]


def test_the_profiles_of_the_page_are_right(folder, monkeypatch):
    (_, text), *_ = [block for block in blocks(PAGE.read_text()) if block[0] == "toml"]
    (folder / "headwater.toml").write_text(text)
    monkeypatch.setenv("SHOP_PASSWORD", "tide")
    monkeypatch.setenv("KAFKA_PASSWORD", CANARY)
    assert read_profile("staging").store.resolve() == "postgresql://shop:tide@localhost/shop"
    assert f"shop:{QUOTED}@kafka-1:9092" in read_profile("prod").log.resolve()
    assert describe(read_profile("prod"))[2].endswith("postgresql://shop:***@db.internal:5432/shop")


def test_connect_takes_the_folder_of_a_profile(folder, monkeypatch):
    (folder / "headwater.toml").write_text(PROD)
    with hw.connect(profile="staging") as client:
        client.create_topic("notes", "text string")
    assert (folder / "data/log.json").exists()
    monkeypatch.setenv("HEADWATER_PROFILE", "staging")
    with hw.connect() as client:
        assert client.topics() == ["notes"]
    with hw.connect(folder / "other") as client:  # what is given counts more than the environment
        assert client.topics() == []


def test_connect_refuses_both_a_place_and_a_profile(folder):
    with pytest.raises(BadSettingError):
        hw.connect(folder / "data", profile="prod")


def test_an_address_that_cannot_be_connected_to_is_shown_without_its_password():
    with pytest.raises(HeadwaterError) as raised:
        hw.connect(f"amqp://u:{CANARY}@h")
    assert CANARY not in str(raised.value)


def test_a_plan_begins_with_where_things_are(tmp_path: Path):
    (tmp_path / "headwater.toml").write_text(
        '[profiles.prod]\nstore = "postgresql://shop:${SHOP_PASSWORD}@127.0.0.1:9/shop"\n'
    )
    (tmp_path / "app.py").write_text('import headwater as hw\n\napp = hw.App("shop")\napp.topic("orders", "id int")\n')
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HEADWATER_")}
    words = [COMMAND, "plan", "app.py", "--profile", "prod"]
    done = subprocess.run(
        words, cwd=tmp_path, env=clean | {"SHOP_PASSWORD": "hunter2"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 3, done.stderr  # nothing answers there
    assert "\nstore        postgresql://shop:***@127.0.0.1:9/shop\n" in done.stdout
    assert "hunter2" not in done.stdout + done.stderr
    assert not (tmp_path / ".headwater").exists()
