"""What tests of several rooms of the accounts use."""

from tests.backend.accounts.letters import posts  # noqa: F401  # a fixture
