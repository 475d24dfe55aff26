"""What a function does, as text that can be compared between runs."""

from __future__ import annotations

import functools
import importlib.util
import subprocess
import sys
from textwrap import dedent

import pytest

from headwater.pipelines import Pipeline, PipelineKind
from headwater.pipelines.function import code_facts, source_of

BEFORE = '''
LIMIT = 100

def rule(frame):
    return frame * LIMIT

def noted(function):
    return function

def big(orders):
    """Large orders."""
    return rule(orders)  # by the rule
'''


@pytest.fixture
def facts(tmp_path):
    """`facts(text)` are those of the function `big` in a file with that text."""
    numbers = iter(range(1000))

    def load(text: str) -> dict[str, str]:
        path = tmp_path / f"app_{next(numbers)}.py"
        path.write_text(dedent(text))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return code_facts(module.big, source_of(module.big))

    return load


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Large orders.", "Orders that are large."),
        ('    """Large orders."""\n', ""),
        ("  # by the rule", ""),
        ("def big(orders):", "@noted\ndef big(orders: object) -> object:"),
        ("return rule(orders)", "return (\n        rule( orders ))"),
        ("LIMIT = 100", "OTHER = 5\nLIMIT = 100"),
    ],
)
def test_what_changes_no_row_changes_no_fact(facts, old, new):
    assert old in BEFORE
    assert facts(BEFORE.replace(old, new)) == facts(BEFORE)


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ("return rule(orders)", "return orders", {"code", "uses.rule", "uses.LIMIT"}),
        ("LIMIT = 100", "LIMIT = 101", {"uses.LIMIT"}),
        ("LIMIT = 100", "LIMIT = '100'", {"uses.LIMIT"}),
        ("frame * LIMIT", "frame + LIMIT", {"uses.rule"}),
        ("def big(orders):", "def big(orders, limit=3):", {"code", "uses.limit"}),
    ],
)
def test_what_can_change_a_row_changes_its_fact(facts, old, new, changed):
    before, after = facts(BEFORE), facts(BEFORE.replace(old, new))
    assert {name for name in before | after if before.get(name) != after.get(name)} == changed


@pytest.mark.parametrize(
    "value",
    ["None", "True", "1.5", "b'x'", "Decimal('1.10')", "timedelta(hours=1)", "(1, ('a', 2))", "[1, 2]", "{'a': 1}"],
)
def test_constants_of_every_plain_kind_count(facts, value):
    text = f"""
        from datetime import timedelta
        from decimal import Decimal
        CHOSEN = {value}
        def big(orders): return orders, CHOSEN
        """
    assert "uses.CHOSEN" in facts(text)


def test_things_without_a_plain_value_do_not_count(facts):
    text = """
        import json
        THING, MIXED = object(), (1, object())
        def big(orders): return json.dumps, THING, MIXED, missing
        """
    assert set(facts(text)) == {"code"}


def test_variables_of_an_enclosing_function_count(facts):
    text = """
        def made(limit):
            def big(orders):
                return orders * limit
            return big
        big = made({})
        """
    assert facts(text.format(3))["uses.limit"] == "3"
    assert facts(text.format(3))["code"] == facts(text.format(4))["code"]


def test_functions_that_call_each_other_end(facts):
    text = """
        def even(n): return n == 0 or odd(n - 1)
        def odd(n): return n != 0 and even(n - 1)
        def big(orders): return even(orders)
        """
    assert set(facts(text)) == {"code", "uses.even", "uses.odd"}


def test_wrapped_functions_count_as_what_they_wrap(facts):
    text = """
        import functools
        @functools.lru_cache
        def rule(frame): return frame + {}
        def big(orders): return rule(orders)
        """
    assert facts(text.format(1))["uses.rule"] != facts(text.format(2))["uses.rule"]


def test_a_function_whose_text_is_unknown_is_compared_by_its_compiled_form():
    def made(text: str):
        space: dict[str, object] = {}
        exec(text, space)
        return code_facts(space["big"], source_of(space["big"]))

    assert made("def big(o): return [x + 1 for x in o]") == made("def big(o):\n  return [x + 1 for x in o]")
    assert made("def big(o): return [x + 1 for x in o]") != made("def big(o): return [x + 2 for x in o]")


def test_a_partial_has_facts():
    assert "code" in code_facts(functools.partial(len), "")


def test_a_fingerprint_is_the_same_in_every_process(tmp_path):
    (tmp_path / "app.py").write_text(
        "import headwater as hw\n"
        "KINDS = {'b', 'a', 'c'}\n"
        "app = hw.App('shop')\n"
        "@app.stream\n"
        "def big(orders):\n"
        "    return orders.where(KINDS)\n"
        "print(big.fingerprint)\n"
    )
    seen = {
        subprocess.run(
            [sys.executable, "app.py"], cwd=tmp_path, env={"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(seen) == 1


def test_the_fingerprint_follows_every_fact_of_the_definition():
    def made(**changed):
        known = {"name": "x", "kind": PipelineKind.VIEW, "inputs": ("a",), "key": ("k",), "sql": "select * from a"}
        return Pipeline(**(known | changed)).fingerprint

    assert made() == made(sql="select  *  from a") == made(doc="other") == made(name="y")
    others = [made(kind=PipelineKind.STREAM), made(inputs=("b",)), made(key=("l",)), made(sql="select k from a")]
    assert len({made(), *others}) == 5


def test_a_pipeline_that_is_called_by_another_counts_unless_it_is_in_another_folder():
    def double(a):
        return a * 2

    made = [Pipeline(name="x", kind=PipelineKind.STREAM, inputs=("a",), function=each) for each in (double, source_of)]
    inner, foreign = made

    def outer(a):
        return foreign(inner(a))

    assert set(code_facts(outer, source_of(outer))) == {"code", "uses.inner"}
