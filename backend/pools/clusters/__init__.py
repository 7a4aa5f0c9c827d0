"""The Rays that pools run on: where they are, what each pool may use of them, and what they were last seen to have.

addresses  the Ray of a pool, and its token
settings   changes of a pool by an operator
dashboard  what a Ray says of itself over HTTP: version and hosts; its yes, no and silence
looks      the devices that a pool's Ray has, against those that are promised
drains     hosts that are being taken out, and what is left of a pool meanwhile
sandboxes  the sandbox on a pool's hosts, by their own word
api        REST over settings and looks, for operators
"""
