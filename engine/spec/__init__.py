"""What may cross the border between control plane and engine. Imports pydantic and nothing heavy.

job                  what a customer may set
recipes              what tells one algorithm from another, and the values that are its own
schedules            who waits for whom, and how stale a trajectory may be
knob_effects         when a setting has an effect
misfits              what of a spec does not fit together
facts                what the engine says about an attempt
control              what driver and control plane say to each other
checkpoint_manifest  what a checkpoint's parts are called, and what they hash to
strict               the base of all of it
"""
