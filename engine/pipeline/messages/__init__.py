"""Messages, a module for each receiver. Any of them may come late, twice, in another order, or never.

                 ReplicaSynced            BatchReady
    rollout/i ───────────────▶  data  ───────────────▶ trainer ──WeightsOffered──▶ relay
        ▲  ◀────────────────────┘ ▲ ▲ ◀────BatchWanted─────┘  ◀──VersionStored───────┘ │
        │        WorkGranted      │ └──ReplicaGone, RepackPlanned── manager ◀──…Reported── every part
        │                         └── SequencesHandedOver: rollout/i ──▶ rollout/j
        └────────────────── VersionAnnounced, WeightsServed ───────────────────────────┘

Every part reports to the driver, which says `PauseRequested` to trainer and data, and `ResizeOrdered` to the manager.

Invariants:
- rollout ⇄ data speak in states, not in changes: a `ReplicaSynced` says all that the replica holds, so a lost or
  doubled message is made good by the next one; so do relays among themselves (`to_relay`);
- data alone says who owns a group; a lease names each grant, and a higher lease ends every lower one;
- a `payload` or a `state` means something to bodies only: a handle on bytes, live or simulated.
"""
