"""Users, teams, projects and API keys: authentication and authorization."""
