"""REST over jobs: shape in, call, shape out."""
