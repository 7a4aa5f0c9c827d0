"""Environments: questions for a model, tools that it may use, and the worth of its answers.

port          the calls of every environment
border        the bounds of what it may hand to the engine
registry      all of them by name
params        parameters by name and type
data_source   the data that a job may read
splits        held-out prompts, and the order of the others
running_sums  the demo task, one digit at a time
tool_sums     the same with a slow tool
jsonl         questions from files, answered in one turn
graded        the same, judged by a customer's own function
tools         questions from files, answered with tools
calls         the ways in which a model calls a tool
gym           any task of reasoning-gym
custom        a customer's own Python file
own_judge     that function, of a custom environment too
verifiers     checks of an answer, by name
unit_tests    a check that a program passes its tests
graders       calls into the sandbox, whose failures are no rewards
calculator    a tool for arithmetic
search        a tool that searches a corpus
waits         the time that a tool takes
examples      an example of every environment, for its page
trial         everything that runs in the sandbox, tried once at set-up
questions/    a customer's data set, larger than memory
sandbox/      the place to run code that nobody here wrote
"""
