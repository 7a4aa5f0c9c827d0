"""The code inside the sandbox, before and around the untrusted code. Standard library only. The engine imports none of
it except `frames`, which both sides use; the other files are sent in as text.

Invariant: nothing here protects against untrusted code in the same process, which may change it at will; the protection
is outside. `judging` keeps text from becoming code in processes without untrusted code.
"""
