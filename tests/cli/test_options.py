"""`--data` and `--profile`: every command takes them, and options take precedence over the environment."""

from __future__ import annotations

import pytest

from headwater.cli.options import Options


@pytest.fixture(autouse=True)
def profiles(tmp_path, monkeypatch, log):
    """The log of the profile `shop` is the folder of `log`, that of `far` is on Kafka."""
    monkeypatch.chdir(tmp_path)
    for name in ("PROFILE", "DATA", "LOG"):
        monkeypatch.delenv(f"HEADWATER_{name}", raising=False)
    (tmp_path / "headwater.toml").write_text('[profiles.shop]\nlog = "data"\n[profiles.far]\nlog = "kafka://h:1"\n')


@pytest.mark.parametrize("words", [["--profile", "shop", "topics"], ["topics", "--profile=shop"]])
def test_a_profile_leads_to_its_log(call, words):
    done = call(*words, "--json", where=None)
    assert [row["topic"] for row in done.rows] == ["notes", "notes_copy", "orders", "orders_copy"]


def test_a_profile_of_the_environment_counts_for_every_command(call, monkeypatch):
    monkeypatch.setenv("HEADWATER_PROFILE", "shop")
    assert call("send", "notes", '{"text": "a"}', where=None).code == 0
    assert len(call("cat", "notes", "--json", where=None).rows) == 1


def test_an_unknown_profile_is_wrong_usage_with_the_near_one(call):
    done = call("topics", "--profile", "shp", "--json", where=None)
    assert done.code == 2
    assert (done.problem["code"], done.problem["data"]) == ("UNKNOWN_PROFILE", {"profile": "shp"})
    assert done.problem["fix"] == "headwater topics --profile shop --json"


def test_a_wrong_profile_is_reported_with_its_line(call, tmp_path):
    (tmp_path / "headwater.toml").write_text('[profiles.shop]\nlgo = "data"\n')
    done = call("topics", "--profile", "shop", "--json", where=None)
    assert done.code == 2
    assert (done.problem["code"], done.problem["location"]) == ("BAD_PROFILE", "headwater.toml:2")


@pytest.mark.parametrize(
    ("options", "kafka", "place"),
    [
        (Options(profile="far"), True, ".headwater"),
        (Options(profile="far", data="here"), True, "here"),
        (Options(profile="far", data="http://127.0.0.1:1"), False, "http://127.0.0.1:1"),
        (Options(profile="shop", data="here"), False, "here"),
    ],
)
def test_the_profile_says_where_the_log_is_and_data_what_is_on_this_machine(options, kafka, place):
    assert (options.kafka, options.target) == (kafka, place)


def test_a_folder_that_is_typed_counts_more_than_the_environment(monkeypatch):
    monkeypatch.setenv("HEADWATER_LOG", "kafka://h:1")
    assert Options().kafka
    assert not Options(data="here").kafka
    assert Options(data="here").target == "here"


def test_a_command_that_reads_the_files_of_a_log_refuses_kafka(call):
    done = call("verify", "--profile", "far", "--json", where=None)
    assert (done.code, done.problem["code"]) == (2, "BAD_SETTING")
