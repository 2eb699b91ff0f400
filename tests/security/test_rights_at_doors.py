"""Rights at the doors of a real server, beside the table of verbs: metrics, configuration in the spelling of fila,
suggestions of the command.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

import fairlead
from fairlead import Client
from fairlead.model.access import EVERY_RIGHT, Right
from fairlead.server.bootstrap import BOOTSTRAP_FILE
from fairlead.server.fila.v1 import admin_pb2
from fairlead.testing import ServerProcess, run_server
from tests.faces.doors import CommandFace, CommandRefused, FilaFace, outcome_at
from tests.faces.table import FORBIDDEN, Thing, furnish

STRANGERS = {f"{right}:store/*" for right in Right}


@dataclass
class Site:
    """A server that asks for keys, and one who may do everything."""

    server: ServerProcess
    root: Client
    exhibit: Thing
    secrets: dict[frozenset[str], str] = field(default_factory=dict)

    def secret(self, grants: set[str]) -> str:
        wanted = frozenset(grants)
        if wanted not in self.secrets:
            self.secrets[wanted] = self.root.keys.create("a caller", sorted(grants)).secret
        return self.secrets[wanted]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    data = tmp_path_factory.mktemp("rights") / "data"
    settings = {"durability": "os", "auth.mode": "keys"}
    with run_server(data, grpc=True, http=True, settings=settings) as server:
        secret = (data / BOOTSTRAP_FILE).read_text().strip()
        with fairlead.connect(server.address, api_key=secret) as root:
            yield Site(server, root, furnish(root, "shop/own.exhibit", "copy-exhibit"))
        assert server.stop() == 0
        assert "Traceback" not in server.log


@pytest.mark.parametrize("right", [None, *Right])
def test_metrics_take_any_right_on_all_queues(site: Site, right: Right | None) -> None:
    for grants, expected in (
        ({f"{right}:*"} if right else set(), 200 if right else 403),
        ({f"{right or 'admin'}:shop/*"}, 403),
    ):
        assert http(site.server, "/metrics", site.secret(grants))[0] == expected


def test_metrics_do_not_open_without_a_key_and_health_does(site: Site) -> None:
    assert [http(site.server, page, None)[0] for page in ("/metrics", "/healthz", "/readyz", "/")] == [
        401,
        200,
        200,
        200,
    ]


@pytest.mark.parametrize(
    "key", ["throttle.t", "throttle.no-such", "throttle:t:rate", "throttle:no-such:rate", "plain", "no-such"]
)
def test_configuration_that_is_not_of_a_queue_is_refused_alike_in_any_spelling(site: Site, key: str) -> None:
    site.root.config.set("throttle:t:rate", 5)
    face, thing = FilaFace(site.server.addresses["grpc"], site.secret(STRANGERS)), site.exhibit
    asked: list[Callable[[Any, Thing], object]] = [
        lambda x, _: x.ask("GetConfig", admin_pb2.GetConfigRequest(key=key)),
        lambda x, _: x.ask("SetConfig", admin_pb2.SetConfigRequest(key=key, value="1,1")),
        lambda x, _: x.ask("SetConfig", admin_pb2.SetConfigRequest(key=key, value="")),
    ]
    assert [outcome_at(face, call, thing).error for call in asked] == [FORBIDDEN] * 3
    listed = face.ask("ListConfig", admin_pb2.ListConfigRequest(prefix=key[:3]))
    assert (len(listed.entries), listed.total_count) == (0, 0)
    assert site.root.config.get("throttle:t:rate") == "5"
    face.close()


def test_the_command_line_suggests_no_queue_that_one_may_not_see(site: Site) -> None:
    for queue in ("shop/invoices", "store/invoices", "store/invoicing"):
        site.root.create_queue(queue)
    face = CommandFace(site.server.address, site.secret(STRANGERS))
    said = {}
    for slip in ("store/invoicez", "shop/invoicez", "shop/invoices", "invoices"):
        with pytest.raises(CommandRefused) as refused:
            face.run("stats", slip)
        said[slip] = refused.value
    assert (said["store/invoicez"].error, "store/invoices" in said["store/invoicez"].said) == (
        "queue_not_found",
        True,
    )
    assert "shop/" not in said["store/invoicez"].said
    assert {said[slip].error for slip in said if slip != "store/invoicez"} == {FORBIDDEN}
    assert all("store/" not in said[slip].said for slip in said if slip != "store/invoicez")


def test_every_right_on_everything_is_what_the_first_key_has(site: Site) -> None:
    assert set(site.root.keys.show().grants) == set(map(str, EVERY_RIGHT))


def http(server: ServerProcess, page: str, key: str | None, method: str = "GET") -> tuple[int, bytes]:
    request = urllib.request.Request(f"http://{server.addresses['http']}{page}", method=method)
    if key is not None:
        request.add_header("Authorization", f"Bearer {key}")
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read()
