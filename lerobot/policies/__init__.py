"""What learns and acts."""
