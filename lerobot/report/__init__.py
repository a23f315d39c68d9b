"""What runs have come to, and which of them is better. Imports no torch."""

from lerobot.report.write import Report, write_report

__all__ = ["Report", "write_report"]
