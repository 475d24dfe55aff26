"""Options of joins are checked where the user calls them."""

from __future__ import annotations

import pytest

import headwater as hw
from headwater.errors import BadPipelineError


def test_an_unknown_handling_of_missing_rows_is_refused():
    with pytest.raises(BadPipelineError) as caught:
        hw.enrich(None, hw.Table.named("products"), on="id", missing="quarantined")
    assert caught.value.data == {"option": "missing", "value": "quarantined"}
    assert caught.value.location.file.endswith("test_joins.py")
