"""The whole of Laminar on one machine without containers: real servers from wheels, kept alive by one supervisor.

home           folders, ports and secrets of one Laminar
services       what runs in it, and in which order
supervisor     keeps the services alive
processes      starts, finds and ends them
postgres       a real Postgres from a wheel
valkey         a real Valkey from a wheel
ray_head       a local Ray with tokens
site_commands  up, down, status, logs
demo           the first job, watched in the terminal
demo_accounts  how to sign in, in one file
errors         what a person at the terminal reads
testing        a throw-away site for one command
parts          every test, in three processes
test_times     how long tests took, by room
"""
