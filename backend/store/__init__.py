"""The object store, in a folder or in a bucket."""
