"""The Rays that pools run on: where they are, what each pool may use of them, and what they were last seen to have."""
