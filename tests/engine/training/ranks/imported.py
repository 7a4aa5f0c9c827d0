"""The slow imports of a rank's process, done once by the process from which ranks are forked."""

from importlib import import_module

from engine.training.zero.guest import import_deepspeed

for name in ("factory", "whole.sharding", "fsdp.sharding", "zero.sharding"):
    import_module(f"engine.training.{name}")
import_module("tests.engine.training.ranks.worlds")
import_deepspeed("cpu")
