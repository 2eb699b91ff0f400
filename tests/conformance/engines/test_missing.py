"""What the new engine cannot do yet is refused, and the list of it only gets shorter."""

from __future__ import annotations

import pytest

from fairlead import NewMessage
from fairlead.engine.engine import Engine
from fairlead.engine.missing import MISSING_FEATURES, missing_verbs
from fairlead.errors import InvalidRequest
from fairlead.store.kv.dictionary import DictionaryStore
from fairlead.testing import ManualClock
from fairlead.verbs.enqueue import EnqueueMany
from fairlead.verbs.queues import CreateQueue, Purge

#: Lower these with each verb and feature that the engine gets; never raise them.
MAX_MISSING_VERBS = 46
MAX_MISSING_FEATURES = 16


def test_the_lists_of_what_is_missing_only_get_shorter() -> None:
    assert len(missing_verbs()) <= MAX_MISSING_VERBS
    assert len(MISSING_FEATURES) <= MAX_MISSING_FEATURES


def test_a_missing_verb_is_refused() -> None:
    engine = Engine(DictionaryStore(), clock=ManualClock())
    assert "purge" in missing_verbs()
    with pytest.raises(InvalidRequest, match="a verb that the new engine can do"):
        engine.do(Purge("q"))


def test_a_message_that_asks_for_a_missing_feature_is_refused() -> None:
    message = NewMessage(b"", stream="s")
    engine = Engine(DictionaryStore(), clock=ManualClock())
    engine.do(CreateQueue("q"))
    with pytest.raises(InvalidRequest, match="the new engine cannot do this yet"):
        engine.do(EnqueueMany("q", [NewMessage(b""), message]))
