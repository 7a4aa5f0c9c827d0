"""The code inside the sandbox, before and around the untrusted code. Standard library only; nothing here is imported
by the engine but to be sent in (`frames` is spoken on both sides).

Invariant: nothing in here guards anything from code beside it, which may change it at will; what guards is outside.
`judging` keeps text from becoming code, where there is none beside it.
"""
