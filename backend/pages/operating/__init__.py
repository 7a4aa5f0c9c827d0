"""Pages for who operates the site.

status_views  what `manage.py doctor` finds
"""
