"""The server's responses as frozen dataclasses. `raw` is the complete JSON document, including fields that are newer
than this client; times are datetimes in UTC, durations and sizes have their unit in the name."""
