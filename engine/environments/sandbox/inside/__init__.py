"""The code inside the sandbox, before and around the untrusted code. Standard library only; nothing here is imported
by the engine but to be sent in (`frames` is spoken on both sides).

Invariant: nothing in here guards anything from code beside it, which may change it at will; what guards is outside.
`judging` keeps text from becoming code, where there is none beside it.

bootstrap    takes its limits, then hands over
frames       messages on a pipe
values       the Python values that may cross, as JSON
serve        a warm process that answers calls
solution     holds a model's program for the tests
tests        runs a data set's tests
judging      what a judge does before it looks at a model's text: no evaluation, so much time of the processor
mathematics  equality of two answers
patterns     searches a data set's pattern in an answer
expressions  reads mathematics without evaluating it
chance       settles what a generator draws by the machine's own chance
gym          generators and scorers of reasoning-gym
"""
