"""Every page in every state: checked by axe-core, with screenshots by `python -m tests.gallery FOLDER`."""
