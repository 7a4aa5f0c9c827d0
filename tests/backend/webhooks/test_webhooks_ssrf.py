"""A webhook reaches only the public internet, whatever its name or address pretends to be."""

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from backend.webhooks.addresses import NOT_PUBLIC, ForbiddenAddress, GuardedNetwork, checked_url, refuse_inner, resolve
from backend.webhooks.secret_box import new_secret
from backend.webhooks.transport import Courier, Message, Outcome
from tests.backend.conftest import NOW
from tests.backend.webhooks.webhook_receiver import HOST_NAME, Receiver, receiving

INNER = [
    "127.0.0.1", "127.1.2.3", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
    "192.0.0.1", "192.0.2.1", "192.88.99.1", "198.18.0.1", "203.0.113.9", "224.0.0.1", "240.0.0.1", "255.255.255.255",
    "::", "::1", "::7f00:1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "fc00::1", "fd12::1", "fe80::1", "fe80::1%eth0",
    "fec0::1", "ff02::1", "ff0e::1", "2001:db8::1", "2001::1", "2002:7f00:1::", "2002:a00:1::", "64:ff9b::7f00:1",
    "64:ff9b::a00:1", "64:ff9b:1::1", "100::1", "4000::1",
]  # fmt: skip


class StubResolver:
    """Returns one list after the other, the last forever."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers, self.asked = list(answers), 0

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked += 1
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as found:
        yield found


def carry(url: str, network: GuardedNetwork, *, tls: ssl.SSLContext | None = None, loopback: bool = False) -> Outcome:
    message = Message(
        delivery_id="whd_1", endpoint_id="whk_1", url=url, message_id="evt_1", body="{}", secrets_in_use=[new_secret()]
    )
    courier = Courier(network, allow_loopback=loopback, tls=tls, patience_s=1.0)
    return asyncio.run(courier.carry(message, at=NOW))


@pytest.mark.parametrize("address", INNER)
def test_name_resolving_to_inner_address_is_refused(receiver: Receiver, address: str) -> None:
    network = GuardedNetwork(resolve=StubResolver([address]))
    outcome = carry(f"https://innocent.example:{receiver.port}/", network)
    assert (outcome.status, outcome.error) == (None, NOT_PUBLIC)
    assert not receiver.received


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "2002:808:808::", "64:ff9b::808:808"])
def test_public_internet_is_allowed(address: str) -> None:
    refuse_inner(ipaddress.ip_address(address))


def test_one_inner_address_among_public_ones_is_refused(receiver: Receiver) -> None:
    network = GuardedNetwork(resolve=StubResolver(["8.8.8.8", "127.0.0.1"]))
    assert carry(f"https://a.example:{receiver.port}/", network).error == NOT_PUBLIC
    assert not receiver.received


def test_name_is_resolved_once_per_attempt_against_rebinding(receiver: Receiver) -> None:
    """A second resolution would return this machine's address. The check of the first one is off here."""
    for _ in range(3):
        names = StubResolver(["192.0.2.1"], ["127.0.0.1"])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("backend.webhooks.addresses.refuse_inner", lambda address: None)
            carry(f"https://rebind.example:{receiver.port}/", GuardedNetwork(resolve=names))
        assert names.asked == 1
    assert not receiver.received


@pytest.mark.parametrize("host", ["2130706433", "0x7f000001", "0177.0.0.1", "127.1", "localhost", "[::1]", "0"])
def test_other_spellings_of_this_machine_are_refused(receiver: Receiver, host: str) -> None:
    """With the system's resolver, which accepts all of them."""
    outcome = carry(f"https://{host}:{receiver.port}/", GuardedNetwork(resolve=resolve))
    assert outcome.status is None and not receiver.received
    assert outcome.error == NOT_PUBLIC


@pytest.mark.parametrize("failure", [socket.gaierror(-2, "Name or service not known"), UnicodeError("label too long")])
def test_unknown_name_reads_like_an_inner_one(failure: Exception) -> None:
    async def resolve_nothing(host: str, port: int) -> list[str]:
        raise failure

    for network in (GuardedNetwork(resolve=resolve_nothing), GuardedNetwork(resolve=StubResolver([]))):
        assert carry("https://db.internal/", network).error == NOT_PUBLIC


@pytest.mark.parametrize("host", [*INNER, "localhost", "a.localhost", "2130706433", "0x7f.1"])
def test_registration_names_no_difference_between_inner_hosts(host: str) -> None:
    url = f"https://[{host}]/" if ":" in host else f"https://{host}/"
    with pytest.raises(ForbiddenAddress, match=f"^{NOT_PUBLIC}$"):
        checked_url(url, allow_loopback=False)


def test_name_of_this_machine_is_treated_like_any_name() -> None:
    """Refused at registration, it could be guessed; at delivery it resolves to an inner address."""
    for host in (socket.gethostname(), "some-other-machine"):
        assert checked_url(f"https://{host}/", allow_loopback=False)


def test_plain_http_and_sockets_are_refused(receiver: Receiver) -> None:
    network = GuardedNetwork(resolve=StubResolver(["127.0.0.1"]))
    assert carry(receiver.url, network).error == "must begin with https://"
    with pytest.raises(ForbiddenAddress):
        asyncio.run(network.connect_unix_socket("/var/run/docker.sock"))
    assert not receiver.received


def test_pinned_connection_still_names_the_host(tmp_path: Path) -> None:
    """Connects by address; SNI, certificate and Host use the name."""
    with receiving(tls_folder=tmp_path) as receiver:
        trusting = ssl.create_default_context(cafile=str(tmp_path / "certificate.pem"))
        network = GuardedNetwork(resolve=StubResolver(["127.0.0.1"]), allow_loopback=True)
        outcome = carry(f"https://{HOST_NAME}:{receiver.port}/hook", network, tls=trusting)
    assert outcome.status == 200, outcome
    (got,) = receiver.received
    assert got.server_name == HOST_NAME and got.headers["host"] == f"{HOST_NAME}:{receiver.port}"


def test_certificate_of_another_name_or_issuer_is_refused(tmp_path: Path) -> None:
    with receiving(tls_folder=tmp_path) as receiver:
        trusting = ssl.create_default_context(cafile=str(tmp_path / "certificate.pem"))
        network = GuardedNetwork(resolve=StubResolver(["127.0.0.1"]), allow_loopback=True)
        other = carry(f"https://other.example:{receiver.port}/hook", network, tls=trusting)
        nobody = carry(f"https://{HOST_NAME}:{receiver.port}/hook", network)
    assert {other.error, nobody.error} == {"TLS certificate not valid"} and not receiver.received


def test_loopback_is_reached_only_if_environment_allows(receiver: Receiver) -> None:
    network = GuardedNetwork(resolve=resolve, allow_loopback=True)
    assert carry(receiver.url, network, loopback=True).status == 200
    refused = carry("http://10.0.0.1/", network, loopback=True)
    assert refused.error == "must begin with https://", "and no other address than loopback"
