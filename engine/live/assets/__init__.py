"""The data sets and models of a job on the nodes that need them: fetched once, verified, shared by all processes.

job_assets  what a job's spec names, and where that is on this node
fetching    part by part from the control plane, or by its links from a bucket
node_cache  the folder of a node that keeps them, within bounds
"""
