"""Messages, a module for each receiver. Any message may arrive late, twice, out of order, or never.

                 ReplicaSynced            BatchReady
    rollout/i ───────────────▶  data  ───────────────▶ trainer ──WeightsOffered──▶ relay
        ▲  ◀────────────────────┘ ▲ ▲ ◀────BatchWanted─────┘  ◀──VersionStored───────┘ │
        │        WorkGranted      │ └──ReplicaGone, RepackPlanned── manager ◀──…Reported── every part
        │                         └── SequencesHandedOver: rollout/i ──▶ rollout/j
        └────────────────── VersionAnnounced, WeightsServed ───────────────────────────┘

Every part reports to the driver, which sends `PauseRequested` to trainer and data, and `ResizeOrdered` to the manager.

Invariants:
- rollout ⇄ data send states, not changes: a `ReplicaSynced` lists all that the replica holds, so the next message
  repairs a lost or doubled one; relays do so among themselves (`to_relay`);
- data alone decides who owns a group; a lease numbers each grant, and a higher lease ends every lower one;
- a `payload` or a `state` is opaque to brains: a body's handle on bytes, live or simulated.
"""
