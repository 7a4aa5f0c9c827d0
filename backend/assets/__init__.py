"""Assets: the data sets and models that a team uploaded, or that an operator registered.

models           assets, their files and parts, quotas of bytes, the jobs that use them
listing          what an asset may be made of: names, kinds of files, sizes
storage          a team's bytes, exact under its lock
uploading        from a listing to a whole asset, part by part
contents         the look into a model's files before it counts as one
places           where the bytes of an asset lie
registering      what an operator put into the shared folder
naming           the assets that specs name, for whoever submits and launches
tokens           the right of an attempt's nodes to fetch
serving          what they fetch
removing         deletion, and the sweep of what was deleted or never finished
selectors        assets, as somebody may see them
receiving        the body of a part, taken in piece by piece
representations  assets, as programs see them
assets_api       REST
background       the task that sweeps
"""
