"""Every page in every state: held to axe-core's rules, and photographed with `python -m tests.gallery FOLDER`."""
