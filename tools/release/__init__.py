"""What a release publishes, made and checked on this machine: `python -m tools.release check`.

The workflow `.github/workflows/release.yml` calls the same commands, one for each thing that it publishes.
docs/design/releasing.md describes how to release.
"""
