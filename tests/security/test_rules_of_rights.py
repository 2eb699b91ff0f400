"""The laws of patterns and grants, on generated ones."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fairlead.decide.rights import allows, covers, matches, may_change, may_grant, rights_on
from fairlead.errors import FairleadError, InvalidRequest
from fairlead.middleware.stack import AdmittedCaller
from fairlead.model.access import EVERY_RIGHT, Grant, KeyRecord, Right, check_pattern
from fairlead.model.names import check_queue_name
from tests.sampling import sampled
from tests.security.scene import opened

#: Few letters, so that names and patterns meet; dots and `dlq` where they could matter.
part = st.lists(st.sampled_from(["a", "b", "a.", ".", "-", ".dlq", ".a", ".b"]), max_size=3).map(
    lambda parts: "a" + "".join(parts)
)
queue = st.one_of(part, st.builds("{}/{}".format, part, part))


def _is_pattern(text: str) -> bool:
    try:
        check_pattern(text)
    except InvalidRequest:
        return False
    return True


pattern = st.one_of(
    st.just("*"),
    queue,
    queue.map("{}.*".format),
    part.map("{}/*".format),
).filter(_is_pattern)
right = st.sampled_from(list(Right))
grant = st.builds(Grant, right, pattern)
grants = st.lists(grant, max_size=4).map(tuple)

#: What a name may have behind the part that a pattern gives.
ENDS = ("a", "b", "zz", "a.b", "zz.dlq")


def names_like(pattern: str) -> list[str]:
    """Names that a pattern matches, as different from each other as it allows."""
    if pattern == "*":
        return ["a", "zz", "zz.zz", "a/zz", "zz/zz", "zz/a.zz"]
    if pattern.endswith("*"):
        return [pattern[:-1] + end for end in ENDS]
    return [pattern]


@given(queue)
def test_generated_names_are_names(name: str) -> None:
    assert check_queue_name(name) == name


@given(pattern, pattern, st.lists(queue, max_size=20))
@example("a.*", "a./*", [])
@example("a.*", "a", ["a.dlq"])
@example("*", "a/*", [])
@example("a/*", "a.*", [])
def test_a_pattern_covers_another_when_it_matches_every_name_of_it(
    wide: str, narrow: str, names: list[str]
) -> None:
    likely = [*names, *names_like(narrow), *names_like(wide)]
    of_narrow = [name for name in likely if matches(narrow, name)]
    assert set(names_like(narrow)) <= set(of_narrow)
    inside = covers([Grant(Right.PRODUCE, wide)], Grant(Right.PRODUCE, narrow))
    assert inside == all(matches(wide, name) for name in of_narrow)


@given(pattern, queue)
def test_dead_letters_belong_to_their_queue(pattern: str, name: str) -> None:
    alive = name.removesuffix(".dlq")
    assert matches(pattern, alive + ".dlq") == matches(pattern, alive)


@given(part, part)
def test_a_prefix_matches_neither_its_own_name_nor_another_project(prefix: str, rest: str) -> None:
    assert not matches(f"{prefix}.*", prefix)
    assert not matches(f"{prefix}.*", f"{prefix}.{rest}/{rest}")
    assert not matches(f"{prefix}.*", f"{rest}/{prefix}.{rest}")
    assert not matches(f"{prefix}/*", prefix)


@given(grants, right, queue)
def test_a_right_is_had_where_some_grant_of_it_matches(
    held: tuple[Grant, ...], wanted: Right, name: str
) -> None:
    assert allows(held, wanted, name) == (wanted in rights_on(held, name))
    assert allows(held, wanted, name) == any(
        one.right == wanted and matches(one.pattern, name) for one in held
    )


@given(grants, grant, right, queue)
def test_nobody_grants_more_than_they_have(
    own: tuple[Grant, ...], wanted: Grant, any_right: Right, name: str
) -> None:
    if may_grant(own, wanted):
        for one in [name, *names_like(wanted.pattern)]:
            if matches(wanted.pattern, one):
                assert allows(own, wanted.right, one)
                assert allows(own, Right.ADMIN, one)


@given(grants, grants, st.booleans())
def test_nobody_changes_a_key_with_a_right_of_which_they_are_not_the_master(
    own: tuple[Grant, ...], others: tuple[Grant, ...], made_it: bool
) -> None:
    caller = KeyRecord("caller", "c", b"", 0, "somebody", own)
    key = KeyRecord("key", "k", b"", 0, "caller" if made_it else "somebody", others)
    if may_change(caller, key):
        assert all(may_grant(own, grant) for grant in others)
        assert others or made_it or Grant(Right.ADMIN, "*") in own
    if set(EVERY_RIGHT) <= set(own):
        assert may_change(caller, key)


# Whatever a scoped key does


QUEUES = ["a", "a.a", "a.b", "b", "a/a", "a/b", "zz"]


def reach(held: tuple[Grant, ...]) -> set[tuple[Right, str]]:
    return {(right, name) for right in Right for name in QUEUES if allows(held, right, name)}


class ScopedKey(RuleBasedStateMachine):
    """A key with some rights, beside others, makes any calls on keys; so do the keys that it makes or gets
    the secret of.

    Whatever they do, all of them together reach no further than that one key did.
    """

    def __init__(self) -> None:
        super().__init__()
        self._open = opened()
        self.scene = self._open.__enter__()
        self.hands: list[AdmittedCaller] = []
        self.began: set[tuple[Right, str]] = set()
        self.strangers: dict[str, tuple[Grant, ...]] = {}

    def teardown(self) -> None:
        self._open.__exit__(None, None, None)

    @rule(held=grants, others=st.lists(grants, min_size=1, max_size=3), ends=st.sampled_from([None, "1h"]))
    def begin(self, held: tuple[Grant, ...], others: list[tuple[Grant, ...]], ends: str | None) -> None:
        if self.hands:
            return
        self.strangers = {
            self.scene.key(*grants, name="stranger").info.id: tuple(sorted(set(grants))) for grants in others
        }
        self.hands = [self.scene.as_key(self.scene.key(*held, expires_in=ends))]
        self.began = reach(held)
        self.ends = ends is not None

    def _hand(self, data: Any) -> AdmittedCaller | None:
        return data.draw(st.sampled_from(self.hands)) if self.hands else None

    def _any_key(self, data: Any) -> str:
        return data.draw(
            st.sampled_from(
                [record.key_id for record in self.scene.broker.key_ring.records()] + ["aaaaaaaaaaaa"]
            )
        )

    @rule(data=st.data(), wanted=grants, ends=st.sampled_from([None, "10m", "2h"]))
    def create(self, data: Any, wanted: tuple[Grant, ...], ends: str | None) -> None:
        hand = self._hand(data)
        if hand is not None:
            try:
                made = hand.keys.create("made", wanted, expires_in=ends)
            except FairleadError:
                return
            self.hands.append(self.scene.as_key(made))

    @rule(data=st.data(), wanted=grants)
    def set_grants(self, data: Any, wanted: tuple[Grant, ...]) -> None:
        self._try(data, lambda hand, key_id: hand.keys.set_grants(key_id, wanted))

    @rule(data=st.data(), more=grants, less=grants)
    def change_grants(self, data: Any, more: tuple[Grant, ...], less: tuple[Grant, ...]) -> None:
        self._try(data, lambda hand, key_id: hand.keys.change_grants(key_id, add=more))
        self._try(data, lambda hand, key_id: hand.keys.change_grants(key_id, remove=less))

    @rule(data=st.data())
    def revoke(self, data: Any) -> None:
        self._try(data, lambda hand, key_id: hand.keys.revoke(key_id))

    @rule(data=st.data(), keep=st.sampled_from([None, "1m"]))
    def rotate(self, data: Any, keep: str | None) -> None:
        self._try(
            data,
            lambda hand, key_id: self.hands.append(self.scene.as_key(hand.keys.rotate(key_id, keep=keep))),
        )

    def _try(self, data: Any, call: Any) -> None:
        hand = self._hand(data)
        if hand is not None:
            try:
                call(hand, self._any_key(data))
            except FairleadError:
                return

    @invariant()
    def nobody_has_what_the_first_had_not(self) -> None:
        if not self.hands:
            return
        strangers = set().union(*map(reach, self.strangers.values()))
        for record in self.scene.broker.key_ring.records():
            given = self.strangers.get(record.key_id)
            if given is None:
                assert reach(record.grants) <= self.began
            else:
                assert reach(record.grants) <= reach(given) | self.began
        for hand in self.hands:
            try:
                held = tuple(hand.rights.grants())
            except FairleadError:
                continue
            assert reach(held) <= self.began, (held, strangers)

    @invariant()
    def keys_beyond_the_first_stay_as_they_are(self) -> None:
        now = {record.key_id: record.grants for record in self.scene.broker.key_ring.records()}
        for key_id, held in self.strangers.items():
            if not reach(held) <= self.began:
                assert now.get(key_id) == held

    @invariant()
    def what_it_holds_ends_when_it_does(self) -> None:
        if self.hands and self.ends:
            for hand in self.hands:
                record = next(
                    (one for one in self.scene.broker.key_ring.records() if one.key_id == hand.caller.key_id),
                    None,
                )
                assert record is None or 0 < record.expires_ms <= self.scene.clock.now_ms() + 3_600_000


ScopedKey.TestCase.settings = settings(max_examples=sampled(15, of=60), stateful_step_count=25)
TestAScopedKeyNeverReachesFurther = ScopedKey.TestCase
