"""The store of large things, in a folder or in a bucket."""
