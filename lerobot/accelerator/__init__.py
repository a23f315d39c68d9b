"""Devices, precision, loss scaling and TF32: the only place that names a device."""
