"""The engine's reports: ingested once, stored compactly, drawn live."""
