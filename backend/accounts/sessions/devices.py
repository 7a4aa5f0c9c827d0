"""A browser's own words, as a name that somebody recognises. They prove nothing, and are shown as text."""

from typing import Final

# The first that is found: what comes later in a row is claimed by those before it as well.
_BROWSERS: Final = (
    ("Edg", "Edge"), ("OPR", "Opera"), ("Firefox", "Firefox"), ("FxiOS", "Firefox"), ("SamsungBrowser", "Samsung"),
    ("Chrome", "Chrome"), ("CriOS", "Chrome"), ("Safari", "Safari"),
)  # fmt: skip
_SYSTEMS: Final = (
    ("Android", "Android"), ("iPhone", "iPhone"), ("iPad", "iPad"), ("Windows", "Windows"), ("CrOS", "ChromeOS"),
    ("Macintosh", "macOS"), ("Linux", "Linux"),
)  # fmt: skip


def device_of(user_agent: str) -> str:
    browser = next((name for mark, name in _BROWSERS if mark in user_agent), "")
    system = next((name for mark, name in _SYSTEMS if mark in user_agent), "")
    return " on ".join(filter(None, (browser or user_agent.split("/")[0][:40], system))) or "something without a name"
