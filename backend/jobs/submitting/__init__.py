"""The way from a spec to a waiting job.

submit       the one door to the line
costs        what it will cost, by the price of now
destination  the project, the pool and the quotas of a new job, asked for in one trip
refusals     demands that no job may make
fitting      the memory that a job needs of each device, and whether its pool has it
naming       the version behind each name
presets      what a spec does not say, by its model
key_use      devices and time of the jobs of one API key
validation   checks that are too slow or too risky for a request
code_check   a check that a customer's file defines what the engine will call
retrying     a new job made of a finished one
successors   names of jobs that are made of others
templates    specs to start from
"""
