"""What is left of messages and intents for callers who may look and may not read."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from fairlead.model.facts import Intent
from fairlead.model.views import MessageInfo


def hide(info: MessageInfo) -> MessageInfo:
    """Metadata only: of the headers their names."""
    hidden = ("payload", "headers", "carry", *(["errors"] if "errors" in info.hidden else []))
    return replace(info, payload=b"", headers=dict.fromkeys(info.headers, ""), carry=b"", hidden=hidden)


def without_header(intent: Intent) -> Intent:
    """What a redrive selects by was typed by one who may read."""
    header = intent.filter.get("header")
    if not isinstance(header, (list, tuple)) or not header:
        return intent
    return msgspec.structs.replace(intent, filter=intent.filter | {"header": (header[0], "")})
