"""One attempt on a cluster: placed, wired, supervised and ended. The only room that imports all others."""
