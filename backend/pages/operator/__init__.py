"""The pages of operators of the platform; for everybody else they do not exist."""
