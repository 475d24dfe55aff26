"""Example 34: parcels that failed are kept, mended, and shipped in the end, each once."""

from __future__ import annotations

PRICES = {"tea": 990, "ink": 450, "pen": 120, "tee": 990}  # the mistyped one costs what tea costs
ARTICLES = dict(enumerate(["tea", "tee", "pen", "ink", "tee"], start=1))


def shipped(numbers: list[int]) -> str:
    return f"shipped {[f'{number} for {PRICES[ARTICLES[number]]} to de' for number in numbers]}"


def test_dead_letters_say_why_and_go_back_after_a_repair(printed):
    lines = printed("34_dead_letters.py")
    assert lines[0] == shipped([1, 4])
    assert lines[1:4] == [
        f"dead {place}: failed after 2 attempts, KeyError: '{article}'"
        for place, article in enumerate(["tee", "pen", "tee"], start=1)
    ]
    assert lines[4] == "it failed in ship"
    assert lines[5:] == ["mended 2", "again 1", shipped([2, 3, 5]), "dead letters left: 0"]
