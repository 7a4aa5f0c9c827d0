"""The whole stack, real, as its users meet it. A package, so that its site ends with it and not with all tests."""
