"""The variables that docker-compose.yml takes from .env, in the order of .env.example.

backend/environment.py declares what the control plane reads, engine/spec/node_variables.py what Ray nodes read; a line
here repeats nothing of it, unless containers have another default or the text would mislead with Compose.
"""

from dataclasses import dataclass
from typing import Final

from backend.environment import DECLARED
from engine.spec.node_variables import NODE_VARIABLES


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    name: str
    text: str
    value: str = ""
    """The example's value."""
    is_optional: bool
    """The site works with an empty value too."""
    when_empty: str = ""


def required(name: str, text: str, value: str = "") -> Line:
    return Line(name=name, text=text, value=value, is_optional=False)


def optional(name: str, text: str, when_empty: str = "") -> Line:
    return Line(name=name, text=text, is_optional=True, when_empty=when_empty)


def declared(name: str, *, text: str = "", when_empty: str = "") -> Line:
    """An optional variable of the control plane, in its own words where no others are given."""
    variable = DECLARED[name]
    return optional(name, text or variable.text, when_empty or variable.when_unset or variable.default or "")


def of_nodes(name: str, *, text: str = "", when_empty: str = "") -> Line:
    """A variable of Ray nodes alone."""
    variable = NODE_VARIABLES[name]
    return optional(name, text or variable.text, when_empty or variable.when_unset)


LINES: Final = (
    required(
        "LAMINAR_VERSION",
        "The images are built, kept and rolled back by this name. A new one at every upgrade.",
        "0.1.0",
    ),
    required(
        "COMPOSE_FILE",
        "Read by Compose itself; never empty. docker-compose.yml:infra/gpus.yml gives Ray workers this machine's GPUs.",
        "docker-compose.yml",
    ),
    optional("COMPOSE_PROFILES", "Read by Compose itself: tls adds a proxy that ends TLS."),
    required("LAMINAR_TORCH", "The build of the engine's image: cuda or cpu. cpu wants the next line too.", "cuda"),
    optional(
        "LAMINAR_TORCH_WHEELS",
        "A page that lists torch's wheels as built for CPUs; PyTorch's page \"Get started\" names one. A package index "
        "has only the CUDA build.",
    ),
    required("POSTGRES_PASSWORD", "Password of the database; letters and digits only, as it is part of an address."),
    required(
        "VALKEY_PASSWORD", "Password of the message broker; letters and digits only, as it is part of an address."
    ),
    required(
        "LAMINAR_SECRET_KEY",
        "Signs sessions and cookies: anyone who knows it can sign in as any user. To change it, move the old one to "
        "the next line (infra/OPERATING.md, Rotation of secrets).",
    ),
    declared("LAMINAR_SECRET_KEYS_OF_BEFORE"),
    declared(
        "LAMINAR_RAY_URL",
        text="The Jobs API of a Ray that you have; the next line is then its token.",
        when_empty="the one of these containers",
    ),
    required("LAMINAR_RAY_TOKEN", "Allows to run code on the Ray cluster; web and worker share it with the cluster."),
    required("LAMINAR_PUBLIC_URL", DECLARED["LAMINAR_PUBLIC_URL"].text, "http://localhost:8000"),
    required("LAMINAR_ALLOWED_HOSTS", DECLARED["LAMINAR_ALLOWED_HOSTS"].text, "localhost"),
    declared(
        "LAMINAR_CONTROL_URL",
        text="Where the engine sends its facts: an address of web itself, as the proxy refuses them; for Ray nodes on "
        "other machines, one that they reach.",
        when_empty="http://web:8000",
    ),
    required(
        "LAMINAR_WEB_ADDRESS",
        "Address of this machine at which the site is reached, by plain http. 0.0.0.0: from everywhere; better a proxy "
        "here that ends TLS.",
        "127.0.0.1",
    ),
    required("LAMINAR_WEB_PORT", "Port of this machine at which the site is reached.", "8000"),
    required(
        "LAMINAR_WEB_PROCESSES",
        "Web processes behind that port; each takes up to 14 of the 100 connections to the database.",
        "2",
    ),
    optional(
        "LAMINAR_TLS_CERTIFICATE_FILE",
        "With --profile tls: certificate of the public address, with its chain.",
        "Caddy gets one by ACME",
    ),
    optional("LAMINAR_TLS_KEY_FILE", "Key of that certificate."),
    optional(
        "LAMINAR_FRONT_NETWORK", "Network of web and proxy, if this machine uses the default one.", "172.31.251.0/28"
    ),
    required(
        "LAMINAR_RAY_CPUS",
        "CPUs that each Ray worker offers; jobs ask for fractions, so more than there are is allowed.",
        "8",
    ),
    required(
        "LAMINAR_RAY_SHM",
        "Shared memory of each Ray container, a limit and not a reservation: its object store, and 5.5 versions of the "
        "largest model. 8gb holds Qwen3-0.6B (infra/OPERATING.md, Shared memory).",
        "8gb",
    ),
    required(
        "LAMINAR_RAY_OBJECT_STORE",
        "The part of it that Ray's object store takes, in bytes: batches on their way. Less than the shared memory.",
        "1000000000",
    ),
    required("LAMINAR_DEBUG", DECLARED["LAMINAR_DEBUG"].text, "0"),
    declared("LAMINAR_LOG_FORMAT", text="json makes every line of a log an object, on Ray nodes too."),
    declared(
        "LAMINAR_OTLP_URL",
        text="A collector of traces (OTLP over HTTP), such as http://collector:4318, reached from web, worker and Ray.",
    ),
    declared("LAMINAR_STORE_URL"),
    declared("LAMINAR_STORE_ENDPOINT"),
    optional("AWS_ACCESS_KEY_ID", "The store's key.", "the role of the machine, where there is one"),
    optional("AWS_SECRET_ACCESS_KEY", "The secret of that key."),
    optional("AWS_SESSION_TOKEN", "The session token of a key that expires."),
    optional("AWS_ROLE_ARN", "A role that is assumed with the token of the next line's file, in place of a key."),
    optional("AWS_WEB_IDENTITY_TOKEN_FILE", "File with that token, which is renewed in place."),
    optional("AWS_SHARED_CREDENTIALS_FILE", "File with a profile of the name default, in place of a key."),
    optional("AWS_DEFAULT_REGION", "Region of the store.", "us-east-1"),
    optional("AWS_REGION", "The same by its other name."),
    optional("AWS_CA_BUNDLE", "File of certificates by which the store's own is checked.", "those of the image"),
    declared("LAMINAR_STORE_REGION"),
    declared("LAMINAR_STORE_ADDRESSING"),
    declared(
        "LAMINAR_DATABASE_URL",
        text="A Postgres that you have, postgresql://user:password@host:5432/name?sslmode=verify-full.",
        when_empty="the one of these containers",
    ),
    declared("LAMINAR_DATABASE_DIRECT_URL"),
    optional(
        "LAMINAR_BACKUP_DATABASE_URL",
        "The same Postgres by an account that may replicate (REPLICATION), for backups.",
        "the site's own account",
    ),
    declared(
        "LAMINAR_BROKER_URL",
        text="A Valkey or Redis that you have, rediss://:password@host:6379/0.",
        when_empty="the one of these containers",
    ),
    declared("LAMINAR_CA_FILE"),
    declared("LAMINAR_KEEP_POINTS_DAYS"),
    declared("LAMINAR_KEEP_LOGS_DAYS"),
    declared("LAMINAR_KEEP_TRAJECTORIES_DAYS"),
    declared(
        "LAMINAR_AUDIT_DIR",
        text="Folder for the signed anchors of the audit log, best on another disk, user 10001's own.",
        when_empty="the volume audit",
    ),
    optional(
        "LAMINAR_BACKUP_DIR",
        "Folder for backups, best on another disk, user 10001's own (install -d -o 10001 -m 700).",
        "backups, next to this file",
    ),
    declared(
        "LAMINAR_AUDIT_KEY_FILE",
        text="Ed25519 key that signs the anchors (openssl genpkey -algorithm ed25519).",
        when_empty="one is made in the volume site",
    ),
    declared("LAMINAR_TRUSTED_PROXIES", when_empty="the network of web and proxy"),
    declared(
        "LAMINAR_METRICS_TOKEN",
        text="Bearer token for /metrics from elsewhere.",
        when_empty="from within the container only",
    ),
    declared("LAMINAR_METRICS_TOKEN_FILE"),
    declared("LAMINAR_RATE_SCALE"),
    declared("LAMINAR_WEBHOOKS_TO_LOOPBACK"),
    declared("LAMINAR_EMAIL_URL"),
    declared("LAMINAR_EMAIL_FROM"),
    declared("LAMINAR_SESSION_IDLE_HOURS"),
    declared("LAMINAR_SESSION_DAYS"),
    declared("LAMINAR_BREACHED_PASSWORDS_FILE"),
    declared("LAMINAR_OPEN_SIGN_UP"),
    declared("LAMINAR_RAY_TOKENS_DIR"),
    declared("LAMINAR_OIDC_ISSUER"),
    declared("LAMINAR_OIDC_CLIENT_ID"),
    declared("LAMINAR_OIDC_SECRET_FILE"),
    declared("LAMINAR_OIDC_NAME"),
    declared("LAMINAR_OIDC_DOMAINS"),
    of_nodes(
        "LAMINAR_NODE_CACHE_DIR",
        text="Folder in which Ray workers keep the data sets and models that they fetched, user 10001's own.",
        when_empty="in the volume store",
    ),
    of_nodes("LAMINAR_NODE_CACHE_GB"),
    of_nodes(
        "LAMINAR_VLLM_PYTHON",
        text="Interpreter of vLLM's environment inside the Ray image.",
        when_empty="the image's own",
    ),
    of_nodes("LAMINAR_SANDBOX"),
    optional(
        "LAMINAR_APPARMOR",
        "AppArmor profile of the Ray containers, on hosts that have AppArmor: laminar-engine, once loaded.",
        "Docker's",
    ),
)
