"""Every page in every state: held to axe-core's rules, and photographed with `python -m tests.gallery FOLDER`.

manifest.py      the entries: which page, in which state, who looks
exhibits.py      the world that they are pictures of
looking.py       opening an entry in Chromium, asking axe, taking the picture
showing.py       the pictures side by side, as one page to look through
"""
