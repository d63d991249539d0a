"""User code: download, extraction, installation of requirements and import, before training."""
