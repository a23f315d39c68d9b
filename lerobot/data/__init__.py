"""LeRobotDatasets, read and written."""
