"""A bucket behind TLS, of any provider, for the control plane and the engine."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import boto3
import pytest

from backend.store.chosen import store_at
from backend.store.port import StoreUnavailable
from engine.live.checkpoints.store import CheckpointStore
from engine.spec.assets.store_address import StoreAddress
from tests.backend.outside.conftest import NONE, REFUSED, RIGHT, Company, advice
from tests.s3_server import CREDENTIALS, S3Server, s3_server

KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


@pytest.fixture(scope="module")
def server(company: Company) -> Iterator[S3Server]:
    with pytest.MonkeyPatch.context() as patch, s3_server(certificate=company.certificate) as running:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        port = urlsplit(running.endpoint).port
        client = boto3.client("s3", endpoint_url=f"https://localhost:{port}", verify=str(company.ours.file))
        client.create_bucket(Bucket="laminar")
        yield running


@pytest.fixture
def address(server: S3Server) -> StoreAddress:
    return StoreAddress.read("s3://laminar/some", endpoint=f"https://localhost:{urlsplit(server.endpoint).port}")


def believe(monkeypatch: pytest.MonkeyPatch, company: Company, case: str) -> None:
    if case != NONE:
        monkeypatch.setenv("AWS_CA_BUNDLE", company.authorities(case))


def test_both_planes_reach_a_bucket_of_our_authority(
    monkeypatch: pytest.MonkeyPatch, company: Company, address: StoreAddress, tmp_path: Path
) -> None:
    believe(monkeypatch, company, RIGHT)
    store = store_at("s3://laminar/some", folder=tmp_path, endpoint=address.endpoint)
    store.put("a", b"content")
    assert store.get("a") == b"content"
    engine = CheckpointStore(address)
    assert engine._client.get_object(Bucket="laminar", Key="some/a")["Body"].read() == b"content"


@pytest.mark.parametrize("case", REFUSED)
def test_impostor_bucket_is_refused_at_once_and_setting_named(
    monkeypatch: pytest.MonkeyPatch,
    company: Company,
    address: StoreAddress,
    case: str,
    tmp_path: Path,
) -> None:
    believe(monkeypatch, company, case)
    endpoint = address.endpoint.replace("localhost", company.host(case))
    store = store_at("s3://laminar/some", folder=tmp_path, endpoint=endpoint)
    with pytest.raises(StoreUnavailable, match=advice(case).replace("LAMINAR_CA_FILE", "AWS_CA_BUNDLE")):
        store.get("a")
    waited: list[float] = []
    engine = CheckpointStore(StoreAddress.read("s3://laminar/some", endpoint=endpoint), wait=waited.append)
    with pytest.raises(ConnectionError, match=r"LAMINAR_STORE_ENDPOINT.*AWS_CA_BUNDLE"):
        engine.open("s3://laminar/some/step", tmp_path, is_given_up=lambda: False)
    assert waited == [], "a bad certificate is not retried"


def test_a_role_is_enough_where_there_are_no_keys(
    monkeypatch: pytest.MonkeyPatch, company: Company, address: StoreAddress, tmp_path: Path
) -> None:
    """As for pods and machines: a token file, for which the provider issues keys."""
    believe(monkeypatch, company, RIGHT)
    for name in KEYS:
        monkeypatch.delenv(name)
    token = tmp_path / "token"
    token.write_text("of a pod")
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/laminar")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(token))
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", address.endpoint)
    store_at("s3://laminar/role", folder=tmp_path, endpoint=address.endpoint).put("a", b"by role")
    assert CheckpointStore(address)._client.get_object(Bucket="laminar", Key="role/a")["Body"].read() == b"by role"


@pytest.mark.parametrize(
    ("addressing", "begins"),
    [("", "https://s3.example.org/laminar/some/a?"), ("path", "https://s3.example.org/laminar/some/a?"),
     ("virtual", "https://laminar.s3.example.org/some/a?")],
)  # fmt: skip
def test_region_and_style_are_the_operators(
    monkeypatch: pytest.MonkeyPatch, addressing: str, begins: str, tmp_path: Path
) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    variables = {
        "LAMINAR_STORE_URL": "s3://laminar/some",
        "LAMINAR_STORE_ENDPOINT": "https://s3.example.org",
        "LAMINAR_STORE_REGION": "eu-north-7",
        "LAMINAR_STORE_ADDRESSING": addressing,
    }
    names = ("endpoint", "region", "addressing")
    ours = store_at(
        variables["LAMINAR_STORE_URL"],
        folder=tmp_path,
        **{name: variables[f"LAMINAR_STORE_{name.upper()}"] for name in names},
    )
    on_a_node = StoreAddress.from_environment(variables)
    assert on_a_node is not None
    theirs = CheckpointStore(on_a_node)._client.generate_presigned_url(
        "get_object", Params={"Bucket": "laminar", "Key": "some/a"}
    )
    for url in (ours.presigned_url("a", expires_in_s=60), theirs):
        assert url is not None and url.startswith(begins) and "eu-north-7" in url


@pytest.mark.parametrize(
    ("name", "value"), [("URL", "ftp://x"), ("ENDPOINT", "s3.example.org:443"), ("ADDRESSING", "subdomain")]
)
def test_malformed_database_address_names_its_setting(name: str, value: str) -> None:
    variables = {"LAMINAR_STORE_URL": "s3://laminar", f"LAMINAR_STORE_{name}": value}
    with pytest.raises(ValueError, match=f"^LAMINAR_STORE_{name} must be .*got {value!r}"):
        StoreAddress.from_environment(variables)


def test_without_an_address_there_is_no_bucket() -> None:
    assert StoreAddress.from_environment({}) is None
