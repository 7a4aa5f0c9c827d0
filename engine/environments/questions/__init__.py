"""Questions from a customer's files: a data set by position, larger than memory.

asked     a data set: its splits, and which question is asked when
question  what a row has to be to be one
files     one file or a folder of them, by kind
lines     rows of a JSONL file
tables    rows of Parquet and Arrow files
params    what a spec says of a data set
"""
