"""The workers of the environment: prompts, answers and rewards, in processes of their own."""
