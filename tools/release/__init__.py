"""What a release publishes, made and checked on this machine: `make release-check`.

The workflow `.github/workflows/release.yml` runs the same and publishes its output.
docs/design/releasing.md describes how to release.
"""
