"""Where the bucket is: read from the environment alike by the control plane and by every node.

Keys, or a role, come from where boto3 looks for them: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_ROLE_ARN with
AWS_WEB_IDENTITY_TOKEN_FILE, a profile, the machine's own role. Of a private authority AWS_CA_BUNDLE is the file.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreAddress:
    bucket: str
    prefix: str
    """Without slashes around it; empty: the whole bucket."""
    endpoint: str
    """Of a server that is not Amazon's; empty: it is."""
    region: str
    addressing: str

    @classmethod
    def read(cls, url: str, *, endpoint: str = "", region: str = "", addressing: str = "") -> Self:
        """Raises `ValueError`."""
        parts = urlsplit(url)
        if parts.scheme != "s3" or not parts.netloc:
            raise ValueError(f"LAMINAR_STORE_URL: s3://bucket/prefix, got {url!r}")
        server = urlsplit(endpoint)
        if endpoint and (server.scheme not in {"http", "https"} or not server.hostname):
            raise ValueError(f"LAMINAR_STORE_ENDPOINT: https://host:port, got {endpoint!r}")
        addressing = (
            addressing or "path"
        )  # names of buckets need not be names of hosts, as on most servers of one's own
        if addressing not in {"path", "virtual"}:
            raise ValueError(
                f"LAMINAR_STORE_ADDRESSING: path (https://host/bucket/key) or virtual (https://bucket.host/key), "
                f"got {addressing!r}"
            )
        return cls(
            bucket=parts.netloc, prefix=parts.path.strip("/"), endpoint=endpoint, region=region, addressing=addressing
        )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self | None:
        """None: there is no bucket. Raises `ValueError`."""
        url, endpoint, region, addressing = (
            environment.get(f"LAMINAR_STORE_{name}", "") for name in ("URL", "ENDPOINT", "REGION", "ADDRESSING")
        )
        return cls.read(url, endpoint=endpoint, region=region, addressing=addressing) if url else None

    @property
    def client_options(self) -> dict[str, Any]:
        """For `boto3.client`."""
        return {"endpoint_url": self.endpoint or None, "region_name": self.region or None}

    @property
    def config_options(self) -> dict[str, Any]:
        """For botocore's `Config`: every call ends. Checksums of Amazon's own kind, which servers of others refuse, are
        left out unless a call needs one: what is kept here is known by its hash."""
        return {
            "connect_timeout": 5,
            "read_timeout": 30,
            "signature_version": "s3v4",
            "s3": {"addressing_style": self.addressing},
            "request_checksum_calculation": "when_required",
            "response_checksum_validation": "when_required",
        }
