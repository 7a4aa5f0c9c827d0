"""Diagnoses: pip's output, explained to somebody who wants to see a demo."""

from __future__ import annotations

import re

# Patterns of pip's output, and what they mean to a new user. The first match wins.
DIAGNOSES = (
    (
        "No space left on device|Disk quota exceeded",
        "The disk is full: free some space (a first set-up takes 6 GiB) and run the command again.",
    ),
    (
        "DO NOT MATCH THE HASHES",
        "A downloaded file does not match the hashes of the locks: a broken download, an altering mirror, or a build "
        "of torch that the locks lack. Run the command again with PIP_NO_CACHE_DIR=1; if it fails again, do not "
        "install from there.",
    ),
    (
        "name resolution|Name or service not known|NewConnectionError|Network is unreachable|ConnectTimeout"
        "|Read timed out|ProxyError|Connection refused|Connection reset",
        "The package index cannot be reached: connect to the network, or set a proxy (HTTPS_PROXY), a mirror "
        "(PIP_INDEX_URL) or a folder of wheels (PIP_FIND_LINKS), and run the command again. Completed downloads are "
        "kept.",
    ),
    (
        "CERTIFICATE_VERIFY_FAILED|SSLError",
        "The package index's certificate is not trusted here: set PIP_CERT to your authority's file and run it again.",
    ),
    (
        "No matching distribution found",
        "The package index has no such file for this machine: Laminar is made for Linux on x86-64 with Python 3.11 to "
        "3.13.",
    ),
    (
        r"Python\.h|error: command '.*(gcc|cc|g\+\+)|Failed building wheel",
        "A package could not be compiled: install Python's headers and a compiler (on Debian and Ubuntu "
        "`apt-get install build-essential python3-dev`), or use Python 3.11 to 3.13.",
    ),
    (
        r"libnuma\.so",
        "vLLM on a CPU needs libnuma: on Debian and Ubuntu `apt-get install libnuma1`, then run the command again.",
    ),
    (
        "[Pp]ermission denied",
        "A folder is not writable. If another user set up this copy of Laminar, run the command as that user.",
    ),
    ("Killed|MemoryError", "Out of memory: free 2 GB of memory and run the command again."),
)


def meaning_of(output: str) -> str:
    known = (meaning for pattern, meaning in DIAGNOSES if re.search(pattern, output))
    return next(known, "Read the log, fix the problem, and run the command again.")
