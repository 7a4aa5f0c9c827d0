"""Jobs: from a spec to the one end that each of them has."""
