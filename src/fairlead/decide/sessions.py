"""Valid session names and request numbers, and how long the broker remembers a session. The rule itself, one
effect and the first answer, is in `engine/work/remembered.py`.
"""

from __future__ import annotations

from fairlead.errors import InvalidRequest
from fairlead.model.checks import check_text
from fairlead.model.limits import MAX_NUMBER, MAX_SESSION_NAME_BYTES, SESSION_KEPT_MS

_HOUR_MS = 3_600_000


def check_session(session: object) -> str:
    name = check_text(session, "session", MAX_SESSION_NAME_BYTES)
    if "\0" in name:
        raise InvalidRequest("session", "text without zero characters", name)
    return name


def check_numbers(number: object, arrived: object) -> None:
    if type(number) is not int or not 1 <= number <= MAX_NUMBER:
        raise InvalidRequest("number", f"a whole number from 1 to {MAX_NUMBER}", number)
    if type(arrived) is not int or not 0 <= arrived < number:
        raise InvalidRequest(
            "arrived", f"a whole number from 0 to {number - 1}, less than the number", arrived
        )


def renews_from_ms(used_ms: int) -> int:
    """The time from which another use extends the session. In whole hours, so that the end of a session is
    rarely written.
    """
    return (used_ms // _HOUR_MS + 1) * _HOUR_MS


def session_ends_ms(used_ms: int) -> int:
    """When the broker forgets a session that was last used at that time."""
    return renews_from_ms(used_ms) + SESSION_KEPT_MS
