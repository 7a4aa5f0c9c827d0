"""The whole of Laminar on one machine without containers: real servers from wheels, kept alive by one supervisor.

home           folders, ports and secrets of one Laminar
claims         names that one process of this machine has at a time
ports          the ports of a home, claimed
turns          one start at a time of what cannot start slowly
services       the services in it, in their order
supervisor     the process that keeps the services alive
database_setup the database before its users,
migrate        and the process that does it
room           room on the disk, and old logs that make some
http_health    whether an HTTP server responds
processes      starting, finding and ending them
postgres       a real Postgres from a wheel
valkey         a real Valkey from a wheel
ray_head       a local Ray with tokens
site_commands  up, down, status, logs
interruption   signals that end a command
demo           the first job, watched in the terminal
demo_accounts  addresses and sign-ins, in one file
errors         the errors that a person at the terminal reads
testing        a throw-away site for one command
"""
