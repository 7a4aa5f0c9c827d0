"""Looks at every part that a site needs. Each finds what is good, and what is wrong under a name that has one cure.

findings     a finding, a fault, a look
doctor       all of them, one after another
site         secrets, operators, pools
authorities  the file of our own certificate authorities
postgres     the database, and a pooler before it
broker       Valkey or Redis
work         beat, workers, and what waits for them
ray          every cluster from outside: token, version, devices
nodes        every node of them from within
store        the store of large things
disks        room for what is kept
mail         the mail server
clock        one time for all
address      names in browsers and for nodes, proxies
near         whether a way leaves this machine
"""
