"""What the operator of a site does, from an empty database on."""
