"""The place of a request in a session, as it travels beside the request."""

from __future__ import annotations

from typing import Any

import msgspec


class Numbered(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """With a `session` the call may be repeated under its `number` and takes effect once. All answers up to the number
    `arrived` have arrived, and the server may forget them.
    """

    session: Any = None
    number: Any = 0
    arrived: Any = 0
