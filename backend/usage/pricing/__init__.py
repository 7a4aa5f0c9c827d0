"""The price of devices: what a device-second of a pool costs, and since when.

money       exact amounts, and how they are written
prices      prices made, withdrawn and looked up
prices_api  REST over prices
"""
