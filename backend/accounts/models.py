"""Users, teams, projects, and the keys that programs use.

Invariants:
- everything that a tenant owns hangs on a team; a project belongs to one team for ever;
- an API key's secret is never stored, only its SHA-256 (256 random bits need no slow hash).
"""

from typing import Any, ClassVar

from django.contrib.auth.base_user import BaseUserManager
from django.contrib.auth.models import AbstractUser
from django.contrib.postgres.fields import ArrayField
from django.db import models

from backend.ids import new_id


def _team_id() -> str:
    return new_id("team")


def _project_id() -> str:
    return new_id("proj")


def _key_id() -> str:
    return new_id("key")


class UserManager(BaseUserManager["User"]):
    def create_user(self, email: str, password: str | None = None, **fields: Any) -> "User":
        user = self.model(email=self.normalize_email(email).lower(), **fields)
        user.set_password(password)
        user.save(using=self._db)
        return user

    def create_superuser(self, email: str, password: str | None = None, **fields: Any) -> "User":
        return self.create_user(email, password, is_staff=True, is_superuser=True, **fields)


class User(AbstractUser):
    username = None  # type: ignore[assignment]  # people sign in with their e-mail address
    email = models.EmailField(unique=True)

    USERNAME_FIELD = "email"
    REQUIRED_FIELDS: ClassVar[list[str]] = []
    objects: ClassVar[UserManager] = UserManager()  # type: ignore[assignment]


class Team(models.Model):
    id = models.CharField(primary_key=True, max_length=32, default=_team_id, editable=False)
    name = models.CharField(max_length=80)
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.name


class Role(models.TextChoices):
    OWNER = "owner"
    ADMIN = "admin"
    MEMBER = "member"
    VIEWER = "viewer"


class Membership(models.Model):
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


class ApiKey(models.Model):
    id = models.CharField(primary_key=True, max_length=32, default=_key_id, editable=False)
    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="api_keys")
    created_by = models.ForeignKey(User, on_delete=models.CASCADE, related_name="api_keys")
    name = models.CharField(max_length=80)
    prefix = models.CharField(max_length=40, unique=True)  # the lookup of every authenticated request
    secret_sha256 = models.CharField(max_length=64)
    scopes = ArrayField(models.CharField(max_length=30))
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True)
    revoked_at = models.DateTimeField(null=True)
    last_used_at = models.DateTimeField(null=True)
