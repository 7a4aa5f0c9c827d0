"""The tests and the benches; a package, so that one of the same name among a machine's wheels does not hide them."""
