"""Pages and dashboards in a headless Chromium."""
