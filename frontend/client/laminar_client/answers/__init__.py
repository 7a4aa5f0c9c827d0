"""What the server answers, by subject, as frozen dataclasses. `raw` is the whole document as it came, with what is
newer than this client; times are datetimes in UTC, durations and sizes have their unit in the name."""
