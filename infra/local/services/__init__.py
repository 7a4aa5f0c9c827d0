"""The services of a home: how each is started, checked and stopped."""
