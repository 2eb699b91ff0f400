"""API keys in the engine: what is stored of them, who gets in, and what a crash or a failed write leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fairlead.engine.engine import Engine
from fairlead.engine.key_ring import KeyRing
from fairlead.engine.laws import broken_laws
from fairlead.errors import FairleadError, KeyNotFound, LimitReached, StoreFull, Unauthenticated
from fairlead.model.access import EVERY_RIGHT, Grant, NewKey, Right
from fairlead.model.api_keys import MAX_USE_LAG_MS, make_token
from fairlead.request import Caller, Request
from fairlead.store.kv.dictionary import DictionaryData, DictionaryStore
from fairlead.testing import ManualClock
from fairlead.testing.faulty import FaultyStore
from fairlead.verbs.keys import (
    KeysChangeGrants,
    KeysCreate,
    KeysList,
    KeysRevoke,
    KeysRotate,
    KeysSetGrants,
    KeysShow,
)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def data() -> DictionaryData:
    return DictionaryData()


@pytest.fixture
def engine(data: DictionaryData, clock: ManualClock) -> Engine:
    return Engine(DictionaryStore(data), clock=clock)


@pytest.fixture
def ring(engine: Engine) -> KeyRing:
    return KeyRing(engine)


def called_with(key: NewKey) -> Caller:
    return Caller(key.info.id, key.info.name, "test")


def why_refused(ring: KeyRing, token: str) -> str:
    with pytest.raises(Unauthenticated) as error:
        ring.authenticate(token)
    return error.value.message


def test_keys_are_there_after_a_reopening(data: DictionaryData, engine: Engine, clock: ManualClock) -> None:
    kept = engine.do(KeysCreate("kept", ["produce:orders.*"], expires_in="1h"))
    revoked = engine.do(KeysCreate("revoked", ["consume:*"]))
    rotated = engine.do(KeysCreate("rotated", ["admin:*"]))
    engine.do(KeysRevoke(revoked.info.id))
    renewed = engine.do(KeysRotate(rotated.info.id))
    listed = engine.do(KeysList())
    again = Engine(DictionaryStore(data), clock=clock)
    assert again.do(KeysList()) == listed
    assert {info.id for info in listed} == {kept.info.id, renewed.info.id}
    ring = KeyRing(again)
    assert ring.authenticate(kept.secret).grants == (Grant(Right.PRODUCE, "orders.*"),)
    assert ring.authenticate(renewed.secret).name == "rotated"
    for gone in (revoked, rotated):
        why_refused(ring, gone.secret)


def test_unknown_wrong_and_revoked_keys_are_refused_alike(engine: Engine, ring: KeyRing) -> None:
    known, revoked = engine.do(KeysCreate("a")), engine.do(KeysCreate("b"))
    engine.do(KeysRevoke(revoked.info.id))
    forged = f"fl_{known.info.id}_{make_token()[16:]}"
    assert why_refused(ring, forged) == why_refused(ring, revoked.secret) == why_refused(ring, make_token())
    assert "does not look like one" in why_refused(ring, "Bearer")


def test_a_key_ends_with_its_time(engine: Engine, ring: KeyRing, clock: ManualClock) -> None:
    made = engine.do(KeysCreate("short", expires_in="5s"))
    clock.advance(ms=4_999)
    assert ring.authenticate(made.secret).key_id == made.info.id
    clock.advance(ms=1)
    assert "expired" in why_refused(ring, made.secret)


def test_a_right_that_was_asked_for_before_goes_with_its_grant_its_key_and_its_time(
    engine: Engine, ring: KeyRing, clock: ManualClock
) -> None:
    made, other = (engine.do(KeysCreate(name, ["produce:q"], expires_in="5s")) for name in ("a", "b"))

    def allowed(key_id: str = made.info.id) -> list[bool]:
        return [ring.allows(key_id, right, "q") for right in (Right.PRODUCE, Right.CONSUME)]

    assert [allowed(), allowed(), allowed(other.info.id)] == [[True, False]] * 3
    engine.do(KeysSetGrants(made.info.id, ["consume:*"]))
    assert allowed() == [False, True]
    engine.do(KeysRevoke(made.info.id))
    with pytest.raises(Unauthenticated):
        allowed()
    clock.advance(ms=5_000)
    with pytest.raises(Unauthenticated):
        allowed(other.info.id)


def test_any_number_of_queues_may_be_asked_about(engine: Engine, ring: KeyRing) -> None:
    key_id = engine.do(KeysCreate("a", ["produce:a.*"])).info.id
    names = [f"{project}.{n}" for n in range(1500) for project in "ab"]
    for _ in range(2):
        allowed = [name for name in names if ring.allows(key_id, Right.PRODUCE, name)]
        assert allowed == [name for name in names if name.startswith("a.")]


def test_the_last_use_is_written_at_most_once_a_minute(
    engine: Engine, ring: KeyRing, clock: ManualClock
) -> None:
    made = engine.do(KeysCreate("busy"))
    ring.authenticate(made.secret)
    first_ms, commit = clock.now_ms(), engine.store.last_commit
    clock.advance(ms=MAX_USE_LAG_MS)
    ring.authenticate(made.secret)
    assert engine.store.last_commit == commit
    assert engine.do(KeysShow(made.info.id)).last_used_at == first_ms
    clock.advance(ms=1)
    ring.authenticate(made.secret)
    assert engine.do(KeysShow(made.info.id)).last_used_at == clock.now_ms()
    assert broken_laws(engine) == []


def test_a_use_that_cannot_be_written_is_no_reason_to_refuse_a_call(clock: ManualClock) -> None:
    store = FaultyStore(DictionaryStore())
    engine = Engine(store, clock=clock)
    ring, made = KeyRing(engine), engine.do(KeysCreate("busy"))
    store.arm(1, "fail", only=["write"])
    assert ring.authenticate(made.secret).key_id == made.info.id
    assert engine.do(KeysShow(made.info.id)).last_used_at is None
    ring.authenticate(made.secret)
    assert engine.do(KeysShow(made.info.id)).last_used_at is None, "not tried again with every call"
    clock.advance(ms=MAX_USE_LAG_MS)
    ring.authenticate(made.secret)
    assert engine.do(KeysShow(made.info.id)).last_used_at == clock.now_ms()
    assert broken_laws(engine) == []


def test_a_change_that_could_not_be_written_did_not_happen(clock: ManualClock) -> None:
    store = FaultyStore(DictionaryStore())
    engine = Engine(store, clock=clock)
    made = engine.do(KeysCreate("a", ["produce:q"]))
    for request in (
        KeysCreate("b"),
        KeysRevoke(made.info.id),
        KeysSetGrants(made.info.id, []),
        KeysRotate(made.info.id),
    ):
        store.arm(1, "fail", only=["write"])
        with pytest.raises(StoreFull):
            engine.do(request)
    assert engine.do(KeysList()) == [made.info]
    assert KeyRing(engine).authenticate(made.secret).grants == (Grant(Right.PRODUCE, "q"),)
    assert broken_laws(engine) == []


def test_there_are_only_so_many_keys(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.engine.work.keys.MAX_KEYS", 2)
    KeyRing(engine).adopt(make_token(), "first", EVERY_RIGHT)
    made = engine.do(KeysCreate("second"))
    for request in (KeysCreate("third"), KeysRotate(made.info.id, keep="1h")):
        with pytest.raises(LimitReached):
            engine.do(request)
    engine.do(KeysRotate(made.info.id))
    assert len(engine.do(KeysList())) == 2


@pytest.mark.parametrize(
    "act",
    [
        lambda key_id: KeysSetGrants(key_id, ["produce:mine"]),
        lambda key_id: KeysChangeGrants(key_id, add=["produce:mine"]),
        lambda key_id: KeysRevoke(key_id),
        lambda key_id: KeysRotate(key_id),
    ],
)
def test_a_key_outside_the_rights_of_the_caller_is_left_alone(
    engine: Engine, act: Callable[[str], Request[Any]]
) -> None:
    admin = engine.do(KeysCreate("admin", ["admin:mine", "produce:mine"]))
    other = engine.do(KeysCreate("other", ["produce:theirs"]))
    with pytest.raises(KeyNotFound):
        engine.do(act(other.info.id), called_with(admin))
    assert engine.do(KeysShow(other.info.id)) == other.info


def test_a_caller_whose_key_has_ended_changes_nothing(engine: Engine, clock: ManualClock) -> None:
    admin = engine.do(KeysCreate("admin", EVERY_RIGHT, expires_in="1s"))
    other = engine.do(KeysCreate("other"))
    clock.advance(ms=1_000)
    with pytest.raises(Unauthenticated):
        engine.do(KeysRevoke(other.info.id), called_with(admin))
    assert engine.do(KeysShow(""), called_with(other)) == other.info


def test_the_holder_of_a_secret_may_exchange_it(engine: Engine, ring: KeyRing) -> None:
    made = engine.do(KeysCreate("a", ["produce:q"]))
    renewed = engine.do(KeysRotate(made.info.id), called_with(made))
    assert renewed.info.created_by == made.info.id
    assert ring.authenticate(renewed.secret).grants == (Grant(Right.PRODUCE, "q"),)
    why_refused(ring, made.secret)


def test_a_secret_from_a_file_is_taken_once_and_not_after_it_was_revoked(
    data: DictionaryData, engine: Engine, ring: KeyRing, clock: ManualClock
) -> None:
    first = make_token()
    taken = ring.adopt(first, "bootstrap", EVERY_RIGHT)
    assert taken is not None
    assert ring.adopt(first, "bootstrap", EVERY_RIGHT) == taken
    with pytest.raises(FairleadError):
        engine.do(KeysShow("adopted"))
    engine.do(KeysRevoke(taken.id))
    assert KeyRing(Engine(DictionaryStore(data), clock=clock)).adopt(first, "bootstrap", EVERY_RIGHT) is None


def test_another_secret_in_the_file_replaces_the_first(engine: Engine, ring: KeyRing) -> None:
    first, second = make_token(), make_token()
    ring.adopt(first, "bootstrap", EVERY_RIGHT)
    engine.do(KeysCreate("other"))
    assert ring.adopt(second, "bootstrap", EVERY_RIGHT) is not None
    assert ring.authenticate(second).name == "bootstrap"
    why_refused(ring, first)
    assert [record.name for record in ring.records()] == ["other", "bootstrap"]
    assert broken_laws(engine) == []


def test_a_secret_that_an_operator_chose_is_found_by_its_digest_until_another_is_taken(
    data: DictionaryData, engine: Engine, ring: KeyRing, clock: ManualClock
) -> None:
    first, second = "chosen by the operator, 32 or more", "s" * 32
    why_refused(ring, first)
    taken = ring.adopt(first, "bootstrap", EVERY_RIGHT)
    assert taken is not None
    again = KeyRing(Engine(DictionaryStore(data), clock=clock))
    assert again.authenticate(first).key_id == taken.id
    assert again.adopt(first, "bootstrap", EVERY_RIGHT) is not None
    assert [record.key_id for record in again.records()] == [taken.id]
    assert again.adopt(second, "bootstrap", EVERY_RIGHT) is not None
    assert why_refused(again, first) == why_refused(again, make_token()), "as if it had never been there"
    assert again.authenticate(second).key_id != taken.id


def test_a_secret_that_an_operator_chose_ends_with_its_revocation_or_rotation(
    engine: Engine, ring: KeyRing
) -> None:
    for end, secret in ((KeysRevoke, "r" * 32), (KeysRotate, "t" * 32)):
        taken = ring.adopt(secret, "bootstrap", EVERY_RIGHT)
        assert taken is not None
        engine.do(end(taken.id))
        why_refused(ring, secret)
        assert ring.adopt(secret, "bootstrap", EVERY_RIGHT) is None
        why_refused(ring, secret)
    assert broken_laws(engine) == []
