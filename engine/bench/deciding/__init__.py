"""What each schedule has replicas do, counted at a true model's width, and priced.

    brains ⇄ replicas ──▶ a real engine: its own seconds move the virtual clock        the other parts: as in the fleet
                  └─────▶ what it did: steps, rows, context, prefill, installs ──▶ seconds by this processor's constants

counted         the bench
machine         the model and the versions of its weights
engine          an engine that counts what it does
engine_body     a replica's body on such engines, under a virtual clock
samples         its samples, as an engine takes and returns them
own_constants   what this processor takes for each of it
"""
