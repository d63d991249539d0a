"""What embeds a file in a notebook's page; a script has none."""


def embed_file(path: str) -> None:
    """Shows nothing of `path`."""
    del path
