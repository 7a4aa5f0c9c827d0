"""Data that may cross the border between control plane and engine. Imports pydantic and nothing heavy.

job                  everything that a customer may set
optimizer            of it, what moves the weights
recipes              the rows of algorithms, and the values that are each one's own
schedules            who waits for whom, and how stale a trajectory may be
sandbox              the environments that need one, and a node's word on whether it has one
preset               one of them: a setting, its value, why
presets_by_pool      devices, engine and batch, by the pool
presets_table        what a model alone gets on pools of several sizes
vllm_label           a node's word on whether it has vLLM
presets              what a job gets by its model, for what its spec does not say
slots                the versions that a replica holds side by side
environment_workers  how many a job needs for its open samples
environment_params   the environments, and what each takes
knob_effects         the settings that have an effect only sometimes
hints                settings of a valid spec that work against each other
misfits              the parts of a spec that do not fit together
fit                  memory and arithmetic of a job: a room of its own
facts                the engine's news about an attempt
control              messages between driver and control plane
labels               labels of a cluster's hosts, and selectors over them
checkpoint_manifest  names and hashes of a checkpoint's parts
named_assets         the data sets and models that a spec names
node_report          what a node finds when it looks at itself
asset_manifest       names, sizes and hashes of a data set's or a model's files
store_address        the bucket, as environment variables name it
strict               the base of all of it
printable            text without what cannot be seen
log_text             the two forms of log lines
spans                spans of the way of one job
log_subject          what they are about: request, job, attempt
for_tenants          words of the engine without what is of our hosts
"""
