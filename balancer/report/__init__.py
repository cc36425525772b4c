"""What a plan gains, as numbers, text, charts and pages."""
