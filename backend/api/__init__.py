"""What all routes of the REST API share: errors, limits, idempotency, paging."""
