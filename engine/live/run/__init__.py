"""One attempt on a cluster: placed, wired, watched and ended. The only room that imports all others."""
