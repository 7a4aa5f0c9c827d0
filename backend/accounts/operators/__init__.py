"""Acts of operators of the platform on teams and people."""
