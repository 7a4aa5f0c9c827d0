"""Users, their addresses and sessions, teams, projects, invitations, service accounts and API keys.

Invariants, also enforced by the database (constraints here, triggers in the migrations):
- everything that a tenant owns belongs to a team; a project belongs to one team forever;
- a team that has an owner keeps one;
- the secret of a key, an invitation or another link is never stored, only its SHA-256 (256 random bits need no slow
  hash);
- a service account has no password, is not an operator, and is not an owner or admin of a team.
"""

from typing import Any, ClassVar

from django.contrib.auth.base_user import BaseUserManager
from django.contrib.auth.models import AbstractUser
from django.contrib.postgres.fields import ArrayField
from django.db import models, transaction
from django.db.models import Q

from backend.accounts.addresses.proved import vouch_for
from backend.ids import new_id


def _user_id() -> str:
    return new_id("user")


def _team_id() -> str:
    return new_id("team")


def _project_id() -> str:
    return new_id("proj")


def _key_id() -> str:
    return new_id("key")


def _invitation_id() -> str:
    return new_id("inv")


def _change_id() -> str:
    return new_id("addr")


def _signed_in_id() -> str:
    return new_id("ses")


def _service_account_id() -> str:
    return new_id("svc")


class UserManager(BaseUserManager["User"]):
    def create_user(self, email: str, password: str | None = None, **fields: Any) -> "User":
        """For an operator or a used invitation, either of which verifies the address."""
        user = self.model(email=self.normalize_email(email).lower(), **fields)
        user.set_password(password)
        with transaction.atomic(using=self._db):
            user.save(using=self._db)
            if not user.is_service:
                vouch_for(user)
        return user

    def create_superuser(self, email: str, password: str | None = None, **fields: Any) -> "User":
        return self.create_user(email, password, is_staff=True, is_superuser=True, **fields)


class User(AbstractUser):
    username = None  # type: ignore[assignment]  # people sign in with their e-mail address
    email = models.EmailField(unique=True)
    public_id = models.CharField(max_length=32, unique=True, default=_user_id, editable=False)  # what the API shows
    is_service = models.BooleanField(default=False, editable=False)  # the shadow of a service account
    # The invitation's sender saw its link, so the sender may control the account (`addresses.claims`).
    address_by_hand = models.BooleanField(default=False, db_default=False, editable=False)

    USERNAME_FIELD = "email"
    REQUIRED_FIELDS: ClassVar[list[str]] = []
    objects: ClassVar[UserManager] = UserManager()  # type: ignore[assignment]

    class Meta(AbstractUser.Meta):
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=Q(is_service=False) | Q(password__startswith="!", is_staff=False, is_superuser=False),
                name="service_accounts_do_not_sign_in",
            )
        ]


class Team(models.Model):
    id = models.CharField(primary_key=True, max_length=32, default=_team_id, editable=False)
    name = models.CharField(max_length=80)
    requires_mfa = models.BooleanField(default=False)  # of owners and admins
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.name


class Role(models.TextChoices):
    OWNER = "owner"
    ADMIN = "admin"
    MEMBER = "member"
    VIEWER = "viewer"


class Membership(models.Model):
    """A user in a team, with a role. A service account's membership is that of its shadow user."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="memberships")
    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=10, choices=Role.choices)

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["user", "team"], name="one_membership_per_team")]


class Project(models.Model):
    id = models.CharField(primary_key=True, max_length=32, default=_project_id, editable=False)
    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="projects")
    name = models.CharField(max_length=80)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["team", "name"], name="project_name_in_team")]

    def __str__(self) -> str:
        return self.name


class Invitation(models.Model):
    """A single-use invitation to a team for one e-mail address. Its link's token is shown only to its sender."""

    id = models.CharField(primary_key=True, max_length=32, default=_invitation_id, editable=False)
    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="invitations")
    email = models.EmailField()  # lower case
    role = models.CharField(max_length=10, choices=Role.choices)
    token_sha256 = models.CharField(max_length=64, unique=True)
    invited_by = models.ForeignKey(User, on_delete=models.CASCADE, related_name="+")
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    accepted_at = models.DateTimeField(null=True)
    revoked_at = models.DateTimeField(null=True)
    mailed = models.BooleanField(default=False, db_default=False)  # then only the mailbox has seen the link
    made_with = models.ForeignKey("ApiKey", on_delete=models.SET_NULL, null=True, related_name="+")  # ends with it

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["team", "email"],
                condition=Q(accepted_at__isnull=True, revoked_at__isnull=True),
                name="one_open_invitation_per_address",
            )
        ]


class AddressChange(models.Model):
    """A user's request for another address. Nothing changes until the link mailed to the new one is opened."""

    id = models.CharField(primary_key=True, max_length=32, default=_change_id, editable=False)
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="address_changes")
    before = models.EmailField()
    after = models.EmailField()
    proof_sha256 = models.CharField(max_length=64, unique=True)
    by_operator = models.BooleanField(default=False)
    asked_at = models.DateTimeField()
    done_at = models.DateTimeField(null=True)
    cancelled_at = models.DateTimeField(null=True)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["user"],
                condition=Q(done_at__isnull=True, cancelled_at__isnull=True),
                name="one_open_address_change_a_person",
            )
        ]


class ResetLink(models.Model):
    """A single-use link with which a user sets a new password."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="reset_links")
    token_sha256 = models.CharField(max_length=64, unique=True)
    by_operator = models.BooleanField(default=False)  # passed on by hand, so it verifies no mailbox
    made_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True)


class SignedIn(models.Model):
    """A browser in which a user is signed in. The row is deleted with its session."""

    session = models.OneToOneField(
        "sessions.Session", on_delete=models.CASCADE, primary_key=True, related_name="signed_in"
    )
    public_id = models.CharField(max_length=32, unique=True, default=_signed_in_id)  # the session's key is secret
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="signed_in")
    began_at = models.DateTimeField()
    seen_at = models.DateTimeField()
    ip = models.CharField(max_length=45, blank=True)
    user_agent = models.CharField(max_length=200, blank=True)


class ServiceAccount(models.Model):
    """A program's identity in a team. Jobs and keys belong to `user`, a shadow user that cannot sign in."""

    id = models.CharField(primary_key=True, max_length=32, default=_service_account_id, editable=False)
    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="service_accounts")
    project = models.ForeignKey(Project, on_delete=models.CASCADE, null=True, related_name="service_accounts")
    user = models.OneToOneField(User, on_delete=models.PROTECT, related_name="service_account")
    name = models.CharField(max_length=80)
    created_at = models.DateTimeField()
    closed_at = models.DateTimeField(null=True)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["team", "name"], condition=Q(closed_at__isnull=True), name="service_account_name_in_team"
            )
        ]

    def __str__(self) -> str:
        return self.name


class ApiKey(models.Model):
    """A key that acts for `owner`, a user or a service account, in one team."""

    id = models.CharField(primary_key=True, max_length=32, default=_key_id, editable=False)
    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="api_keys")
    owner = models.ForeignKey(User, on_delete=models.CASCADE, related_name="api_keys")
    created_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    created_with = models.ForeignKey("self", on_delete=models.SET_NULL, null=True, related_name="offspring")
    name = models.CharField(max_length=80)
    prefix = models.CharField(max_length=40, unique=True)  # the lookup of every authenticated request
    secret_sha256 = models.CharField(max_length=64)
    scopes = ArrayField(models.CharField(max_length=30))
    project = models.ForeignKey(Project, on_delete=models.CASCADE, null=True, related_name="api_keys")
    max_devices = models.PositiveIntegerField(null=True)  # across its jobs that hold or wait for devices
    max_gpu_hours = models.DecimalField(max_digits=12, decimal_places=2, null=True)  # across all its jobs, ever
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True)
    revoked_at = models.DateTimeField(null=True)
    last_used_at = models.DateTimeField(null=True)


class SharedEntry(models.Model):
    """An entry of allauth in Django's cache: attempts and locks, shared by all processes."""

    key = models.CharField(primary_key=True, max_length=300)
    value = models.JSONField()
    expires_at = models.DateTimeField(null=True)

    class Meta:
        indexes: ClassVar = [models.Index(fields=["expires_at"], name="shared_entry_expiry")]
