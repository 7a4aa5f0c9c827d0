"""The engine checked and measured on a GPU in one afternoon's visit: `infra/gpu/check.sh`, without a network."""
