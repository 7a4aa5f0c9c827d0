"""The verdict tried blind: what is wrong with a run, from a picture of its page alone.

    python -m tests.verdict.blind FOLDER                 twelve numbered pictures, and an encoded key
    … look at them, write FOLDER/answers.json: {"1": "stuck", "2": "healthy", …}
    python -m tests.verdict.blind FOLDER --judge FOLDER/answers.json

The first try, in November 2026: 12 of 12, by one reader, who had worked on the rules and knew which kinds there are.
Its pictures still had the timeline, which shows whether a job has code of its own; it is hidden since.
"""
