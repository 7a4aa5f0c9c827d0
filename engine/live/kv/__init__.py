"""Keys and values on their way from replica to replica: after the tokens of a sample, never instead of them.

offers   the source's: pages put into shared memory layer by layer, for whoever comes for them
fetches  the host's: mapped, or received piece by piece, within a deadline
wire     what both say to each other on a link
"""
