"""The use of devices: settled once, reported in many ways."""
