"""A team's pages: people, API keys, webhooks, audit log."""
