"""A replica: decodes samples on the versions that it holds, in turns with the environment."""
