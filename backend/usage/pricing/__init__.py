"""The price of devices: what a device-second of a pool costs, and since when."""
