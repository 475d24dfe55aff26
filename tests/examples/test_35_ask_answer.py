"""Example 35: answers, an error, nobody there, and the parts of a whole."""

from __future__ import annotations


def test_answers_errors_and_parts_come_back(printed):
    lines = printed("35_ask_answer.py", longest=68)
    assert lines == [
        f"Quote(article='tea', cents={3 * 990})",
        "failed: KeyError 'gold'",
        "nobody answers, question was sent: False",
        f"parts [3, 4, 0, None], complete False, in stock {3 + 4}",
        "partition 3: IndexError",
    ]
