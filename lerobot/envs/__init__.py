"""Simulators: what they yield, their experts, rolling out in them."""
