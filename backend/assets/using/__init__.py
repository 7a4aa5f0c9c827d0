"""Assets of jobs: resolved from a spec's names, fetched by an attempt's nodes."""
