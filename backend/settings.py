"""Django's settings. Those that differ between machines come from `environment.py`; the rest is here."""

import logging
import os
from pathlib import Path
from urllib.parse import urlsplit

from backend.environment import oidc_app, read_environment
from backend.missing import MissingSetting
from backend.outside.database import databases
from backend.outside.mail import mail_settings
from engine.spec.logs.log_text import form_of

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = read_environment()
if ENVIRONMENT.metrics_dir:  # prometheus_client looks for it when it is imported, so before everything else
    Path(ENVIRONMENT.metrics_dir).mkdir(parents=True, exist_ok=True)
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = ENVIRONMENT.metrics_dir

SECRET_KEY = ENVIRONMENT.secret_key
SECRET_KEY_FALLBACKS = list(ENVIRONMENT.secret_keys_of_before)
DEBUG = ENVIRONMENT.debug
ALLOWED_HOSTS = list(ENVIRONMENT.allowed_hosts)
_PUBLIC = urlsplit(ENVIRONMENT.public_url)
CSRF_TRUSTED_ORIGINS = [f"{_PUBLIC.scheme}://{_PUBLIC.netloc}"]

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.humanize",  # allauth's page of security keys uses its filters
    "django.contrib.postgres",
    "django.contrib.staticfiles",
    "backend.pages.operator.apps.ReadOnlyAdmin",
    "allauth",
    "allauth.account",
    "allauth.mfa",
    "allauth.socialaccount",
    "allauth.socialaccount.providers.openid_connect",
    "channels",
    "backend.outside",
    "backend.accounts",
    "backend.pools",
    "backend.jobs",
    "backend.telemetry",
    "backend.checkpoints",
    "backend.assets",
    "backend.usage",
    "backend.budgets",
    "backend.quota_requests",
    "backend.audit",
    "backend.webhooks",
    "backend.verdicts",
    "backend.operating",
    "backend.pages",
    "backend.api",
]
MIDDLEWARE = [
    "backend.api.middleware.RequestIdMiddleware",
    "backend.pages.serving.headers.guard_answers",
    "backend.borders.gzipped.gzip_answers",
    "backend.api.limits.request_guard.admit",
    "backend.borders.wall.wall",
    "django.middleware.security.SecurityMiddleware",
    "backend.pages.serving.static_serving.serve_hashed",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "backend.accounts.sessions.pace.keep_pace",
    "backend.accounts.sessions.following.follow_sessions",
    "backend.accounts.signing_in.denials.note_denials",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "allauth.account.middleware.AccountMiddleware",
]
ROOT_URLCONF = "backend.urls"
ASGI_APPLICATION = "backend.asgi.application"

DATABASES = databases(ENVIRONMENT.database_url, ENVIRONMENT.database_direct_url)

AUTH_USER_MODEL = "accounts.User"
AUTHENTICATION_BACKENDS = ["allauth.account.auth_backends.AuthenticationBackend"]
PASSWORD_HASHERS = ["django.contrib.auth.hashers.Argon2PasswordHasher"]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
    {"NAME": "backend.accounts.passwords.context.ContextWordsValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "backend.accounts.passwords.breached.BreachedPasswordValidator"},
]
ACCOUNT_USER_MODEL_USERNAME_FIELD = None
ACCOUNT_LOGIN_METHODS = {"email"}
ACCOUNT_SIGNUP_FIELDS = ["email*", "password1*", "password2*"]
ACCOUNT_EMAIL_VERIFICATION = "mandatory"  # no sign-in with an unverified address
ACCOUNT_ADAPTER = "backend.accounts.adapter.AccountAdapter"
ACCOUNT_EMAIL_NOTIFICATIONS = True  # of a new password or a second factor; where mail goes out
ACCOUNT_EMAIL_SUBJECT_PREFIX = "Laminar: "
ACCOUNT_LOGOUT_ON_GET = False
ACCOUNT_LOGOUT_ON_PASSWORD_CHANGE = False  # keeps this session; a new password hash ends all others
ACCOUNT_REAUTHENTICATION_REQUIRED = True
# The adapter counts passwords. `login_failed` remains for codes of second factors, per user.
ACCOUNT_RATE_LIMITS = {"login": None, "login_failed": "5/300s/key"}
SOCIALACCOUNT_ADAPTER = "backend.accounts.oidc.adapter.SocialAdapter"
SOCIALACCOUNT_EMAIL_VERIFICATION = "none"  # the adapter refuses an address that the provider has not verified
SOCIALACCOUNT_EMAIL_AUTHENTICATION = True
SOCIALACCOUNT_EMAIL_AUTHENTICATION_AUTO_CONNECT = True
SOCIALACCOUNT_ONLY = False
SOCIALACCOUNT_PROVIDERS = {
    "openid_connect": {
        "provider_class": "backend.accounts.oidc.provider.VerifyingProvider",
        "APPS": oidc_app(ENVIRONMENT),
    }
}
MFA_ADAPTER = "backend.accounts.second_factor.SecondFactorAdapter"
MFA_SUPPORTED_TYPES = ["totp", "webauthn", "recovery_codes"]
MFA_TOTP_ISSUER = "Laminar"
CACHES = {"default": {"BACKEND": "backend.accounts.shared_cache.SharedCache", "LOCATION": ""}}
if ENVIRONMENT.open_sign_up and not ENVIRONMENT.email_url:
    raise MissingSetting("LAMINAR_OPEN_SIGN_UP=1 needs LAMINAR_EMAIL_URL: new users verify their address by mail")
LOGIN_URL = "/accounts/login/"
LOGIN_REDIRECT_URL = "/"
globals().update(mail_settings(ENVIRONMENT.email_url, ENVIRONMENT.email_from))

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [ROOT / "frontend" / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "backend.site_notices.site_notices",
                "backend.pages.announcements.announcements",
            ]
        },
    }
]
STATIC_URL = "/static/"
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "backend.pages.serving.hashed_files.HashedStorage"},
}
STATICFILES_DIRS = [ROOT / "frontend" / "static"]
WHITENOISE_ALLOW_ALL_ORIGINS = False  # no other site loads the fonts
STATIC_ROOT = ENVIRONMENT.site_dir / "static"
WHITENOISE_USE_FINDERS = True  # no collectstatic step on one machine; docker-compose collects when it migrates

LANGUAGE_CODE = "en-gb"
TIME_ZONE = "UTC"
USE_TZ = True

_HTTPS = _PUBLIC.scheme == "https"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = _HTTPS
if _HTTPS:  # a browser accepts such a name only from this host, over https
    SESSION_COOKIE_NAME, CSRF_COOKIE_NAME = "__Host-sessionid", "__Host-csrftoken"
SESSION_COOKIE_HTTPONLY = CSRF_COOKIE_HTTPONLY = True  # forms carry the token; no script reads a cookie
MESSAGE_STORAGE = "django.contrib.messages.storage.session.SessionStorage"  # no cookie of its own
SESSION_COOKIE_AGE = ENVIRONMENT.session_days * 86_400
SESSION_COOKIE_SAMESITE = CSRF_COOKIE_SAMESITE = "Lax"
SECURE_SSL_REDIRECT = _HTTPS
# Requested from inside, on a port without a certificate (`backend.api.limits.request_guard`).
SECURE_REDIRECT_EXEMPT = [r"^internal/engine/", r"^healthz$", r"^readyz$", r"^metrics$"]
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if _HTTPS else None
SECURE_HSTS_SECONDS = 31_536_000 if _HTTPS else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = _HTTPS
SILENCED_SYSTEM_CHECKS = ["security.W021"]  # HSTS preloading is the domain owner's decision
SECURE_CONTENT_TYPE_NOSNIFF = True
X_FRAME_OPTIONS = "DENY"
DATA_UPLOAD_MAX_MEMORY_SIZE = 2 * 1024 * 1024  # a spec is kilobytes; a batch of facts stays under a megabyte

CELERY_BROKER_URL = ENVIRONMENT.broker_url
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "visibility_timeout": 60,  # no background task runs longer than its time limit below
    "unacked_restore_interval": 5,
    "unacked_restore_throttle": 1,
    "socket_timeout": 5,  # kombu's default waits forever on a dead connection
    "socket_connect_timeout": 5,
}
CELERY_TASK_ACKS_LATE = True
CELERY_WORKER_SOFT_SHUTDOWN_TIMEOUT = 5.0
CELERY_TASK_TIME_LIMIT = 45
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_HIJACK_ROOT_LOGGER = False

logging.captureWarnings(True)  # else Python prints them itself, as two lines in another format
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"()": form_of(ENVIRONMENT.log_format)}},
    "filters": {
        "request": {"()": "backend.api.request_context.NameRequest"},
        "refusal": {"()": "backend.api.logged_refusals.OneLineFilter"},
    },
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line", "filters": ["request", "refusal"]}},
    "root": {"handlers": ["stderr"], "level": "INFO"},
    "loggers": {
        # Loggers with handlers of their own pass records to ours, which prevents log injection.
        **{
            name: {"handlers": [], "propagate": True}
            for name in ("django", "django.server", "uvicorn", "uvicorn.error")
        },
        # Celery would write two lines a tick, 150 thousand a day; background tasks log their own results.
        **{
            name: {"handlers": [], "propagate": True, "level": "WARNING"}
            for name in ("httpx", "uvicorn.access", "celery.worker.strategy", "celery.app.trace")
        },
    },
}
