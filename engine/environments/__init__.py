"""What a model is asked, what it may use, and what its answers are worth.

port          what every environment can do
registry      all of them by name
params        parameters by name and type
data_source   which data a job may read
questions     a data set by position, larger than memory
splits        held-out prompts, and the order of the others
running_sums  the demo task, one digit at a time
tool_sums     the same with a slow tool
jsonl         questions from a file, answered in one turn
tools         questions from a file, answered with tools
gym           any task of reasoning-gym
custom        a customer's own Python file
verifiers     whether an answer is right, by name
unit_tests    whether a program passes its tests
graders       calls into the sandbox, whose failures are no rewards
calculator    a tool for arithmetic
search        a tool that searches a corpus
waits         how long a tool takes
sandbox/      where code that nobody here wrote is run
"""
