"""The Rays that pools run on: addresses, the hosts that each pool may use, and the devices last seen there."""
