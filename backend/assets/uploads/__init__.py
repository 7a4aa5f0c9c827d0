"""From a listing to a whole asset.

listing    what an asset may be made of: names, kinds of files, sizes
receiving  the body of a part, taken in piece by piece
upload     begun, part by part, complete
contents   the look into a model's files before it counts as one
"""
