"""`python -m lerobot.report` is `lerobot-report`."""

from lerobot.report.command import main

main()
