"""From a spec to a waiting job.

submit       the one door to the line
destination  the project, the pool and the quotas of a new job, asked for in one trip
refusals     what no job may ask for
key_use      what the jobs of one API key hold and have used
validation   what is too slow or too risky to look at in a request
code_check   does a customer's file define what the engine will call
retrying     a new job made of a finished one
templates    specs to start from
"""
