"""Checks of request arguments. The rest of the engine sees only values that passed them."""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.decide.dead_filter import DeadFilter
from fairlead.errors import InvalidRequest
from fairlead.model.checks import check_text
from fairlead.model.failure import FailureReason, bounded_error, read_reason
from fairlead.model.ids import find_id
from fairlead.model.limits import MAX_CLAIM_TOKEN_BYTES, MAX_CONSUMER_BYTES, MAX_REDRIVE_RATE, STEP_MESSAGES


def check_ids(ids: object, advice: str = "") -> dict[bytes, str]:
    """Each message once, by its binary id, with the text that the caller wrote for it."""
    if isinstance(ids, str) or not isinstance(ids, Sequence) or len(ids) > STEP_MESSAGES:
        raise InvalidRequest("ids", f"a list of at most {STEP_MESSAGES} message ids{advice}", ids)
    given: dict[bytes, str] = {}
    for text in ids:
        raw_id = find_id(text)
        if raw_id is None:
            raise InvalidRequest("ids", "full message ids", text)
        given.setdefault(raw_id, text)
    return given


def check_consumer(value: object) -> str:
    return check_text(value, "consumer", MAX_CONSUMER_BYTES, may_be_empty=True)


def check_token(value: object) -> str:
    return "" if value is None else check_text(value, "token", MAX_CLAIM_TOKEN_BYTES)


def check_bool(value: object, field: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidRequest(field, "True or False", value)
    return value


def check_count(value: object, field: str, *, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise InvalidRequest(field, f"a whole number from 1 to {most}", value)
    return value


def check_rate(rate: float | None) -> float:
    """Messages a second; 0.0 means without a limit."""
    if rate is None:
        return 0.0
    if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 < rate <= MAX_REDRIVE_RATE:
        raise InvalidRequest("rate", f"messages a second, above 0 and at most {MAX_REDRIVE_RATE}", rate)
    return float(rate)


def check_error(error: object, reason: object) -> tuple[str, FailureReason]:
    if not isinstance(error, str):
        raise InvalidRequest("error", "text", type(error))
    return bounded_error(error), read_reason(reason)


def check_filter(given: object) -> DeadFilter:
    """The filter; None becomes a filter that selects everything."""
    if given is None:
        return DeadFilter()
    if not isinstance(given, DeadFilter):
        raise InvalidRequest("filter", "a fairlead.DeadFilter", given)
    return given
