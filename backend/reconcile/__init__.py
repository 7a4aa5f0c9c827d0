"""What Postgres believes against what Ray says: the truth-keeper above jobs and checkpoints."""
