"""What the new engine cannot do yet is refused, and the list of it only gets shorter."""

from __future__ import annotations

import pytest

from fairlead.engine.engine import Engine
from fairlead.engine.missing import MISSING_FEATURES, missing_verbs
from fairlead.errors import InvalidRequest
from fairlead.request import Request
from fairlead.store.kv.dictionary import DictionaryStore
from fairlead.testing import ManualClock

#: Lower these with each verb and feature that the engine gets; never raise them.
MAX_MISSING_VERBS = 0
MAX_MISSING_FEATURES = 2


def test_the_lists_of_what_is_missing_only_get_shorter() -> None:
    assert len(missing_verbs()) <= MAX_MISSING_VERBS
    assert len(MISSING_FEATURES) <= MAX_MISSING_FEATURES


def test_a_missing_verb_is_refused() -> None:
    class Later(Request[None], frozen=True):
        verb_name = "later"

    engine = Engine(DictionaryStore(), clock=ManualClock())
    with pytest.raises(InvalidRequest, match="a verb that the new engine can do"):
        engine.do(Later())
