"""The work of replicas under each schedule, counted at a true model's width, and priced.

brains ⇄ replicas ──▶ a real engine: its own seconds move the virtual clock        the other parts: as in the fleet
              └─────▶ its work: steps, rows, context, prefill, installs ──▶ seconds by this processor's constants
"""
