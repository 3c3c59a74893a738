"""The report of a run: one HTML file that needs nothing else, for people.

    Tally (counted), settings, sample rows -> Report -> page.html.jinja -> FILE.html

Every word of rows, answers and errors is escaped. Called by `cli`.
"""

from mmserve.batch.report.page import Report, check_place, write_report
from mmserve.batch.report.pictures import Strip, draw_strips, find_rows

__all__ = ["Report", "Strip", "check_place", "draw_strips", "find_rows", "write_report"]
