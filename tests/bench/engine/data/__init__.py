"""One data process under the traffic of many replicas."""
