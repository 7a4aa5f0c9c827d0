"""A replica: decodes samples on the versions that it holds, and takes turns with the environment."""
