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

message     everything that can be said
addresses   receivers, by kind and number
to_data     from replicas, manager, trainer, driver
to_rollout  from data, other replicas, manager, relay
to_trainer  from data, relays, driver
to_relay    from trainer, replicas, data, other relays
to_manager  from the parts, the driver, and who watches processes
to_driver   from the parts, and from outside
"""
