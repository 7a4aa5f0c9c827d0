"""Downloads of a checkpoint's model: one .tar behind a signed link."""
