"""Where large things are kept, in a folder or in a bucket.

port    what any store can do
folder  a folder of this machine or of a shared file system
s3      a bucket of any server that speaks S3
chosen  which of them this installation uses
"""
