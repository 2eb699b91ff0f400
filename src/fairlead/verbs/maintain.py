"""Maintenance of the data directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from fairlead.model.access import Right
from fairlead.request import Request, Room, verb

if TYPE_CHECKING:
    from fairlead.middleware.rights import Rights


@verb("checkpoint")
class Checkpoint(Request[None], frozen=True):
    """Write a consistent copy of all data, while running, to a path that does not exist yet.

    Through a server, the path is on the server's machine.
    """

    audited = True
    room = Room.WEIGHS
    # It changes nothing in the data directory.
    durable = False
    slow = True

    path: Annotated[str | Path, Meta(description="Where the copy goes; must not exist.")]

    def authorize(self, rights: Rights) -> Checkpoint:
        rights.need_everywhere(Right.ADMIN)
        return self

    def audit_details(self) -> Mapping[str, object]:
        return {"path": self.path}
