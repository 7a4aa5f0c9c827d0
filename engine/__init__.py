"""The engine: trains a language model by reinforcement learning, each trajectory at its own pace."""
