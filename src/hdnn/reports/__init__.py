"""The report of a run or a model, as one page."""

import hdnn.application  # noqa: F401
from hdnn.reports.page import Report, report, report_of_run

__all__ = ["Report", "report", "report_of_run"]
