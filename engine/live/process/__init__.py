"""What a process of a run knows about itself and the cluster: devices, memory, hosts, links, interruptions."""
