"""Log lines of refused requests, such as a page without permission or an invalid form.

Invariants:
- a refusal is one line with its path and its reason, without a traceback: there is nothing to fix, and strangers must
  not fill the log;
- an unexpected error (500 and above, or no response at all) keeps its traceback.
"""

import logging
from http import HTTPStatus


class OneLineFilter(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        status = getattr(record, "status_code", None)  # set by Django on responses that it made itself
        if record.exc_info and isinstance(status, int) and status < HTTPStatus.INTERNAL_SERVER_ERROR:
            why = str(record.exc_info[1] or "")
            if why and why not in record.getMessage() and isinstance(record.args, tuple) and record.args:
                record.msg, record.args = f"{record.msg} why=%s", (*record.args, why)
            record.exc_info = None
        return True
