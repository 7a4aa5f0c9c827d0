"""The environment's workers: prompts, answers and rewards, in processes of their own."""
