"""People, teams, projects and the keys of programs: who is here, and who may do what."""
