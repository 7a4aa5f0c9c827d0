"""Models and data sets: manifests, names in a spec, addresses in the store."""
