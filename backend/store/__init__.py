"""The store of large things, in a folder or in a bucket.

port    the calls of every store
folder  a folder of this machine or of a shared file system
s3      a bucket of any server that speaks S3
chosen  the one that this installation uses
"""
