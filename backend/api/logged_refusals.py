"""How the log tells of what was refused: a page that is not this person's, a form that nobody can read.

Invariants:
- a refusal is one line with its address and its reason: nothing is to be mended, so no traceback leads there, and
  strangers do not fill the log with them;
- what nobody foresaw (500 and above, or no answer at all) keeps its traceback.
"""

import logging
from http import HTTPStatus


class TellInOneLine(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        status = getattr(record, "status_code", None)  # Django hands it along with whatever it answered itself
        if record.exc_info and isinstance(status, int) and status < HTTPStatus.INTERNAL_SERVER_ERROR:
            why = str(record.exc_info[1] or "")
            if why and why not in record.getMessage() and isinstance(record.args, tuple) and record.args:
                record.msg, record.args = f"{record.msg} why=%s", (*record.args, why)
            record.exc_info = None
        return True
