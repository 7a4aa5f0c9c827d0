"""The doors by which facts come in.

internal_api  the routes for drivers' facts and heartbeats
delay         how late facts are stored
left_facts    what a driver left in its folder, of a time that the database has lost
"""
