"""What `bench peer` compares: tasks, and a run of each system on one of them."""
