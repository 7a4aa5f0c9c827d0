"""Data that may cross the border between control plane and engine. Imports pydantic and nothing heavy.

job                  everything that a customer may set
optimizer            of it, what moves the weights
recipes              the rows of algorithms, and the values that are each one's own
schedules            who waits for whom, and how stale a trajectory may be
presets              what a job gets by its model, for what its spec does not say
slots                the versions that a replica holds side by side
knob_effects         the settings that have an effect only sometimes
misfits              the parts of a spec that do not fit together
fit                  memory and arithmetic of a job: a room of its own
facts                the engine's news about an attempt
control              messages between driver and control plane
checkpoint_manifest  names and hashes of a checkpoint's parts
named_assets         the data sets and models that a spec names
asset_manifest       names, sizes and hashes of a data set's or a model's files
strict               the base of all of it
printable            text without what cannot be seen
log_text             one format of log lines
for_tenants          words of the engine without what is of our hosts
"""
