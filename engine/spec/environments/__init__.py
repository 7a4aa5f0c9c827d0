"""The environments as the spec names them: parameters, workers, and which of them need a sandbox."""
