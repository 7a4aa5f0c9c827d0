"""The price of devices: what a device-second of a pool costs, and from when on."""
