"""Keys by themselves: what is stored, what ends them, what a crash leaves of them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fairlead.errors import (
    Forbidden,
    InvalidRequest,
    KeyNotFound,
    LimitReached,
    SettingInvalid,
    StoreFull,
    Unauthenticated,
)
from fairlead.model.access import EVERY_RIGHT
from fairlead.model.api_keys import read_token
from fairlead.server.bootstrap import BOOTSTRAP, BootstrapOutcome, prepare_bootstrap_key, renew_bootstrap_key
from fairlead.testing import ManualClock, Storage, open_in_memory, stop_before
from fairlead.testing.engine import abandon
from fairlead.testing.sizes import size
from fairlead.verbs.keys import KeysCreate
from tests.security.scene import Scene
from tests.turns import new_place, turn

MINUTE_MS = 60_000


def refused(scene: Scene, token: str) -> str:
    with pytest.raises(Unauthenticated) as error:
        scene.broker.key_ring.authenticate(token)
    return error.value.message


# What is stored


def test_a_secret_has_256_bits_behind_a_prefix_and_is_stored_as_a_digest(scene: Scene) -> None:
    made = scene.key("produce:orders.*")
    prefix, key_id, secret = made.secret.split("_", 2)
    assert (prefix, key_id, len(secret)) == ("fl", made.info.id, 43)
    (record,) = scene.broker.key_ring.records()
    assert record.digest == hashlib.sha256(made.secret.encode()).digest()
    assert secret not in repr(record)
    assert secret not in repr(made)


def test_a_new_key_has_no_rights_unless_it_is_given_some(scene: Scene) -> None:
    assert scene.key().info.grants == ()


def test_keys_cannot_be_reached_through_the_runtime_configuration(scene: Scene) -> None:
    made = scene.key("produce:*")
    assert scene.broker.config.list() == {}
    scene.broker.config.set(made.info.id, "something else")
    assert scene.broker.key_ring.authenticate(made.secret).grants


def test_grants_are_kept_sorted_and_once(scene: Scene) -> None:
    assert scene.key("produce:b", "consume:a", "produce:b", "admin:*").info.grants == (
        "admin:*",
        "consume:a",
        "produce:b",
    )


@pytest.mark.parametrize(
    "grant",
    [
        "produce",
        "produce:",
        "write:orders",
        ":orders",
        "produce:a b",
        "produce:*x",
        "produce:a/b/c",
        "produce:orders.dlq",
        "produce:a*",
        "produce:.*",
        "produce:/x",
        "PRODUCE:x",
        "produce:**",
        "produce:a/**",
    ],
)
def test_a_grant_that_means_nothing_is_refused(scene: Scene, grant: str) -> None:
    with pytest.raises(InvalidRequest):
        scene.key(grant)
    assert scene.broker.keys.list() == []


@pytest.mark.parametrize("name", ["", "x" * 201, "\ud800"])
def test_a_name_that_cannot_be_shown_is_refused(scene: Scene, name: str) -> None:
    with pytest.raises(InvalidRequest):
        scene.broker.keys.create(name)


def test_there_are_only_so_many_keys(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size("api_keys"), 2)
    first = scene.key()
    scene.key()
    with pytest.raises(LimitReached):
        scene.key()
    with pytest.raises(LimitReached):
        scene.broker.keys.rotate(first.info.id, keep="1h")
    scene.broker.keys.rotate(first.info.id)
    assert len(scene.broker.keys.list()) == 2


# Who gets in


def test_wrong_unknown_and_revoked_keys_are_answered_alike(scene: Scene) -> None:
    known, revoked = scene.key(), scene.key()
    scene.broker.keys.revoke(revoked.info.id)
    wrong = known.secret[:-1] + ("A" if known.secret[-1] != "A" else "B")
    unknown, marker = f"fl_{'a' * 12}_{'b' * 43}", f"fl_adopted_{'a' * 43}"
    assert len({refused(scene, token) for token in (wrong, unknown, marker, revoked.secret)}) == 1


@pytest.mark.parametrize(
    "token", ["", "fl_", "x" * 10_000, "x" * 31, "fl_" + "é" * 12 + "_" + "a" * 43, "Bearer"]
)
def test_what_does_not_look_like_a_key_is_refused(scene: Scene, token: str) -> None:
    scene.key()
    assert "does not look like one" in refused(scene, token)


def test_a_key_ends_when_it_expires_and_only_its_holder_hears_that(scene: Scene) -> None:
    made = scene.key(expires_in="30d")
    wrong = made.secret[:-1] + ("A" if made.secret[-1] != "A" else "B")
    scene.clock.advance(ms=30 * 24 * 60 * MINUTE_MS - 1)
    assert scene.broker.key_ring.authenticate(made.secret).key_id == made.info.id
    scene.clock.advance(ms=1)
    assert "expired" in refused(scene, made.secret)
    assert "expired" not in refused(scene, wrong)


def test_an_end_is_kept_to_the_millisecond(scene: Scene) -> None:
    at = scene.clock.now_ms() + 12_345
    assert scene.broker.keys.create("k", expires_at=at).info.expires_at == at


@pytest.mark.parametrize(
    "expires",
    [
        {"expires_in": "0s"},
        {"expires_at": 1},
        {"expires_at": 1.5},
        {"expires_at": True},
        {"expires_at": 1 << 63},
        {"expires_at": 1_800_000_000_000, "expires_in": "1h"},
    ],
)
def test_an_end_that_is_none_is_refused(scene: Scene, expires: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        scene.broker.keys.create("k", **expires)  # type: ignore[arg-type]


def test_the_last_use_is_written_at_most_once_a_minute(scene: Scene) -> None:
    made = scene.key()
    assert scene.broker.keys.show(made.info.id).last_used_at is None
    began = scene.clock.now_ms()
    scene.broker.key_ring.authenticate(made.secret)
    scene.clock.advance(ms=MINUTE_MS)
    scene.broker.key_ring.authenticate(made.secret)
    assert scene.broker.keys.show(made.info.id).last_used_at == began
    scene.clock.advance(ms=1)
    scene.broker.key_ring.authenticate(made.secret)
    assert scene.broker.keys.show(made.info.id).last_used_at == began + MINUTE_MS + 1


def test_a_use_that_cannot_be_written_down_is_no_reason_to_refuse_a_call(scene: Scene) -> None:
    made = scene.key("consume:q")
    with stop_before(scene.broker, lambda step: True, StoreFull("the disk", 0, 1)) as tried:
        for _ in range(3):
            assert scene.broker.key_ring.authenticate(made.secret).key_id == made.info.id
        assert scene.broker.keys.show(made.info.id).last_used_at is None
        assert len(tried) == 1
    scene.clock.advance(ms=MINUTE_MS)
    scene.broker.key_ring.authenticate(made.secret)
    assert scene.broker.keys.show(made.info.id).last_used_at == scene.clock.now_ms()


# Changes


def test_rights_are_added_and_removed_beside_the_others(scene: Scene) -> None:
    key_id = scene.key("produce:a", "consume:a").info.id
    changed = scene.broker.keys.change_grants(key_id, add=["redrive:a", "produce:a"], remove=["consume:a"])
    assert changed.grants == ("produce:a", "redrive:a")
    assert scene.broker.keys.show(key_id) == changed


def test_what_is_removed_must_be_there_word_for_word(scene: Scene) -> None:
    key_id = scene.key("produce:orders.*").info.id
    with pytest.raises(InvalidRequest, match="produce:orders"):
        scene.broker.keys.change_grants(key_id, add=["consume:x"], remove=["produce:orders.eu"])
    assert scene.broker.keys.show(key_id).grants == ("produce:orders.*",)


def test_a_rotated_key_keeps_its_name_rights_and_end_and_the_old_secret_ends(scene: Scene) -> None:
    old = scene.key("produce:orders", name="shop", expires_in="1h")
    scene.clock.advance(ms=MINUTE_MS)
    new = scene.broker.keys.rotate(old.info.id)
    assert (new.info.name, new.info.grants, new.info.expires_at) == (
        "shop",
        ("produce:orders",),
        old.info.expires_at,
    )
    assert new.info.created_at == scene.clock.now_ms()
    assert scene.broker.key_ring.authenticate(new.secret).key_id == new.info.id
    assert "revoked" in refused(scene, old.secret)


def test_the_old_key_may_be_kept_for_a_while_but_never_beyond_its_own_end(scene: Scene) -> None:
    short, long = scene.key(expires_in="1m"), scene.key()
    for old in (short, long):
        scene.broker.keys.rotate(old.info.id, keep="5m")
    assert scene.broker.keys.show(short.info.id).expires_at == short.info.expires_at
    scene.clock.advance(ms=5 * MINUTE_MS - 1)
    assert scene.broker.key_ring.authenticate(long.secret)
    scene.clock.advance(ms=1)
    assert "expired" in refused(scene, long.secret)


def test_a_key_that_is_over_is_not_rotated_into_another_that_is(scene: Scene) -> None:
    old = scene.key(expires_in="1m")
    scene.clock.advance(ms=MINUTE_MS)
    with pytest.raises(InvalidRequest, match="expired"):
        scene.broker.keys.rotate(old.info.id)


@pytest.mark.parametrize("verb", ["show", "revoke", "rotate"])
def test_a_key_that_is_not_there_cannot_be_used(scene: Scene, verb: str) -> None:
    for key_id in ("aaaaaaaaaaaa", "", "adopted", None):
        with pytest.raises(KeyNotFound):
            getattr(scene.broker.keys, verb)(key_id)


# Through a guard


def test_a_key_that_ends_gives_nothing_to_one_that_does_not(scene: Scene) -> None:
    """Or its rights would have no end: it could hand them on, or rotate the other and keep the secret."""
    endless, ending = scene.key("produce:a.b"), scene.key("produce:a.b", expires_in="10m")
    own = scene.as_key(scene.key("admin:a.*", "produce:a.*", "consume:a.*", expires_in="1h"))
    for call in (
        lambda: own.keys.create("k", ["produce:a.b"]),
        lambda: own.keys.create("k", ["produce:a.b"], expires_in="61m"),
        lambda: own.keys.create("k", ["produce:a.b"], expires_at=scene.clock.now_ms() + 61 * MINUTE_MS),
        lambda: own.keys.set_grants(endless.info.id, ["produce:a.b", "consume:a.b"]),
        lambda: own.keys.change_grants(endless.info.id, add=["consume:a.b"]),
        lambda: own.keys.rotate(endless.info.id),
    ):
        with pytest.raises(
            InvalidRequest, match=r"the key that grants ends|no later than the one that grants"
        ):
            call()
    assert own.keys.set_grants(ending.info.id, ["consume:a.b"]).grants == ("consume:a.b",)
    assert own.keys.change_grants(ending.info.id, add=["produce:a.c"]).grants == (
        "consume:a.b",
        "produce:a.c",
    )
    assert own.keys.rotate(ending.info.id).info.expires_at == ending.info.expires_at
    assert own.keys.create("k", ["produce:a.b"], expires_at=scene.clock.now_ms() + 60 * MINUTE_MS).secret
    assert own.keys.set_grants(endless.info.id, []).grants == (), "less it may have"


def test_grants_from_an_iterator_are_read_once(scene: Scene) -> None:
    made = scene.all_powerful().do(KeysCreate("g", (grant for grant in ["produce:a", "consume:a"])))  # type: ignore[arg-type]
    assert made.info.grants == ("consume:a", "produce:a")
    assert scene.broker.audit.read()[0].details["grants"] == "consume:a produce:a"


@pytest.mark.parametrize("verb", ["rotate", "revoke", "set_grants", "change_grants"])
def test_a_key_that_grows_between_the_check_and_the_change_is_left_alone(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    key = scene.key("produce:a.b")
    own = scene.with_grants("admin:a.*", "produce:a.*")
    begin = scene.broker.audit_trail.begin

    def grow(*args: object) -> object:
        scene.broker.keys.set_grants(key.info.id, ["admin:*"])
        return begin(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(scene.broker.audit_trail, "begin", grow)
    arguments = {"set_grants": [[]]}.get(verb, [])
    with pytest.raises(KeyNotFound):
        getattr(own.keys, verb)(key.info.id, *arguments)
    assert scene.broker.key_ring.authenticate(key.secret).key_id == key.info.id
    assert scene.broker.keys.show(key.info.id).grants == ("admin:*",)


def test_a_key_without_rights_belongs_to_its_maker_and_to_admins_of_everything(scene: Scene) -> None:
    maker, other, everywhere = (
        scene.with_grants("admin:a"),
        scene.with_grants("admin:a"),
        scene.with_grants("admin:*"),
    )
    made = maker.keys.create("empty").info
    assert made.created_by == maker.caller.key_id
    with pytest.raises(KeyNotFound):
        other.keys.show(made.id)
    assert made in everywhere.keys.list()
    assert made in maker.keys.list()
    assert made not in other.keys.list()
    maker.keys.revoke(made.id)


def test_whoever_has_a_secret_may_exchange_it(scene: Scene) -> None:
    key = scene.key("consume:a", name="worker")
    own = scene.as_key(key)
    new = own.keys.rotate(key.info.id)
    assert (new.info.name, new.info.grants, new.info.created_by) == ("worker", ("consume:a",), key.info.id)
    with pytest.raises(Unauthenticated):
        own.keys.show()


def test_whoever_found_a_secret_cannot_make_a_second_of_it(scene: Scene) -> None:
    """It would stay when the first is revoked."""
    for grants in (["consume:a"], [], ["admin:a", "consume:b"]):
        key = scene.key(*grants)
        with pytest.raises(Forbidden):
            scene.as_key(key).keys.rotate(key.info.id, keep="1h")
    before = len(scene.broker.keys.list())
    assert before == 3
    master = scene.key("admin:a", "consume:a")
    scene.as_key(master).keys.rotate(master.info.id, keep="1h")
    assert len(scene.broker.keys.list()) == before + 2


def test_a_key_sees_itself_and_what_it_could_change(scene: Scene) -> None:
    inside, outside, own = (
        scene.key("produce:a.b"),
        scene.key("produce:b"),
        scene.key("admin:a.*", "produce:a.*"),
    )
    guard = scene.as_key(own)
    assert {info.id for info in guard.keys.list()} == {inside.info.id, own.info.id}
    assert guard.keys.show().id == own.info.id
    with pytest.raises(KeyNotFound):
        guard.keys.show(outside.info.id)


def test_making_a_key_takes_admin_somewhere(scene: Scene) -> None:
    with pytest.raises(Forbidden):
        scene.with_grants("produce:*", "consume:*").keys.create("k")


def test_what_a_token_or_request_brings_again_is_not_of_a_queue_whose_right_was_taken_away(
    scene: Scene,
) -> None:
    for queue in ("mine", "theirs"):
        scene.broker.create_queue(queue)
        scene.broker.enqueue(queue, b"x")
    key = scene.key("consume:mine", "consume:theirs")
    guard = scene.as_key(key)
    place = new_place(guard)
    assert len(guard.claim("theirs", token="again")) == 1
    scene.broker.keys.set_grants(key.info.id, ["consume:mine"])
    assert guard.claim("mine", token="again") == []
    assert scene.broker.stats("theirs").ready == 1, "it is back"
    scene.broker.keys.set_grants(key.info.id, ["consume:mine", "consume:theirs"])
    assert len(turn(guard, "c", claim={"queue": "theirs"}, place=place).deliveries) == 1
    scene.broker.keys.set_grants(key.info.id, ["consume:mine"])
    assert turn(guard, "c", claim={"queue": "mine"}, place=place).deliveries == []
    assert scene.broker.stats("theirs").ready == 1


# Crashes


@pytest.fixture(params=["memory", "rocks"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return Storage(None if request.param == "memory" else tmp_path / "data")


def test_what_was_answered_about_keys_survives_a_crash(storage: Storage) -> None:
    clock = ManualClock()
    broker = storage.open_broker(clock=clock)
    kept = broker.keys.create("kept", ["produce:orders.*"], expires_in="1h")
    revoked = broker.keys.create("revoked", ["consume:*"])
    rotated = broker.keys.create("rotated", ["admin:*"])
    broker.keys.revoke(revoked.info.id)
    replacing = broker.keys.rotate(rotated.info.id)
    broker.key_ring.authenticate(kept.secret)
    listed = broker.keys.list()
    abandon(broker)
    with storage.reopen().open_broker(clock=clock) as again:
        assert again.keys.list() == listed
        assert again.key_ring.authenticate(kept.secret).grants
        assert again.key_ring.authenticate(replacing.secret).grants
        for gone in (revoked, rotated):
            with pytest.raises(Unauthenticated):
                again.key_ring.authenticate(gone.secret)


# The first key


def test_the_first_key_is_made_in_a_file_that_only_its_owner_can_read(scene: Scene, tmp_path: Path) -> None:
    file = tmp_path / "bootstrap.key"
    assert prepare_bootstrap_key(scene.broker, file) is BootstrapOutcome.MADE
    assert file.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["bootstrap.key"]
    assert scene.broker.key_ring.authenticate(file.read_text().strip()).grants == tuple(sorted(EVERY_RIGHT))
    assert prepare_bootstrap_key(scene.broker, file) is BootstrapOutcome.KNOWN
    assert len(scene.broker.keys.list()) == 1


def test_no_first_key_is_made_where_somebody_has_every_right(scene: Scene, tmp_path: Path) -> None:
    scene.key(*EVERY_RIGHT)
    assert prepare_bootstrap_key(scene.broker, tmp_path / "none") is BootstrapOutcome.NOT_NEEDED
    assert not (tmp_path / "none").exists()


def test_another_secret_in_the_file_replaces_the_first_key(scene: Scene, tmp_path: Path) -> None:
    file = tmp_path / "bootstrap.key"
    prepare_bootstrap_key(scene.broker, file)
    old = file.read_text().strip()
    with open_in_memory() as elsewhere:
        renew_bootstrap_key(elsewhere, file)
    assert prepare_bootstrap_key(scene.broker, file) is BootstrapOutcome.KNOWN
    assert [info.name for info in scene.broker.keys.list()] == [BOOTSTRAP]
    assert scene.broker.key_ring.authenticate(file.read_text().strip())
    assert refused(scene, old)


@pytest.mark.parametrize("end", ["revoke", "rotate"])
def test_a_first_key_that_was_revoked_or_rotated_does_not_come_back_at_the_next_start(
    storage: Storage, tmp_path: Path, end: str
) -> None:
    file = tmp_path / "bootstrap.key"
    broker = storage.open_broker()
    prepare_bootstrap_key(broker, file)
    token = file.read_text().strip()
    after = getattr(broker.keys, end)(read_token(token)[0])
    abandon(broker)
    with storage.reopen().open_broker() as again:
        assert prepare_bootstrap_key(again, file) is BootstrapOutcome.REVOKED
        with pytest.raises(Unauthenticated):
            again.key_ring.authenticate(token)
        if end == "rotate":
            assert again.key_ring.authenticate(after.secret).grants
        file.unlink()
        assert prepare_bootstrap_key(again, file) is (
            BootstrapOutcome.MADE if end == "revoke" else BootstrapOutcome.NOT_NEEDED
        )


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_in_the_place_of_the_first_key_is_refused_and_not_waited_for(
    scene: Scene, tmp_path: Path, make: Callable[[Path, int], None]
) -> None:
    make(tmp_path / "bootstrap.key", 0o600)
    with pytest.raises(SettingInvalid, match="not a directory, a pipe"):
        prepare_bootstrap_key(scene.broker, tmp_path / "bootstrap.key")


def test_a_lost_first_key_is_made_again_in_place(scene: Scene, tmp_path: Path) -> None:
    file = tmp_path / "bootstrap.key"
    prepare_bootstrap_key(scene.broker, file)
    old = file.read_text().strip()
    renew_bootstrap_key(scene.broker, file)
    assert scene.broker.key_ring.authenticate(file.read_text().strip()).grants == tuple(sorted(EVERY_RIGHT))
    assert refused(scene, old)
    assert file.stat().st_mode & 0o777 == 0o600
