"""REST API of jobs: shape in, call, shape out."""
