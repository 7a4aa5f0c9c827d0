"""Credits that operators give by hand, for faults of the platform without a named cause."""
