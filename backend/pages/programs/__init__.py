"""Pages for whoever writes programs against this site.

reference   every route at /api/v1/docs, made from the OpenAPI document
shapes      what requests and answers are made of, in words
views       the client at /client/, the guide at /docs/api
guide       what the guide's page tells: rates, tries and ages as the code has them, examples
wheel       the client's wheel, made from this very version
"""
