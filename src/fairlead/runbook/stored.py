"""The runbook in force as text: what `runbooks.save` keeps and workers read."""

from __future__ import annotations

import msgspec

from fairlead.errors import InvalidRequest
from fairlead.runbook.model import Runbook


def dump_runbook(runbook: Runbook) -> str:
    """Every field written out, so that a default that changes later does not change what is in force. Equal
    runbooks give equal text.
    """
    return msgspec.json.encode(runbook, order="sorted").decode()


def load_runbook(text: str) -> Runbook:
    try:
        return msgspec.json.decode(text, type=Runbook)
    except msgspec.MsgspecError as error:
        raise InvalidRequest("runbook", f"the text that dump_runbook wrote ({error})", text) from None
