"""Assets: the data sets and models that a team uploaded, or that an operator registered.

models           assets, their files and parts, quotas of bytes, the jobs that use them
storage          a team's bytes, exact under its lock
places           where the bytes of an asset lie
selectors        assets, as somebody may see them
uploads/         from a listing to a whole asset
registering      what an operator put somewhere
using/           the assets that specs name, and what nodes fetch of them
removing         deletion, and the sweep of what was deleted or never finished
representations  assets, as programs see them
assets_api       REST
background       the task that sweeps
"""
