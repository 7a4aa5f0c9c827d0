"""Teams and their people: membership, invitations, ceilings."""
